"""Tests of gangs, of jobs of several processes, and of detached jobs."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence

import pytest

from fiber._base import values
from fiber._plugins.backend_choice import refuse_undeclared
from fiber.abc import Backend
from fiber.exceptions import BackendError, CapabilityError, ResourceError
from fiber.model import (
    BackendContext,
    Gang,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    ProcessStatus,
    Reason,
    ReasonKind,
)
from fiber.model import ResourceRequest as Request
from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["Groups"]

_ENTRIES = "fiber.testing.programs"


class Groups(Platform):
    """Tests of gangs, of several processes a job, and of detached jobs."""

    def unacceptable(self, kit: Driver) -> JobSpec:
        """Make a job that the platform never accepts; may be overridden."""
        devices = Request(devices={"no-such-kind": 1})
        return kit.spec(programs.exit_with(0), resources=devices)

    def test_a_job_that_asks_for_unknown_devices_is_refused(self, kit: Driver) -> None:
        with pytest.raises((BackendError, ResourceError)):
            self.submit(kit.backend, self.unacceptable(kit))

        assert list(kit.backend.list(kit.run_id)) == []

    def test_a_gang_that_comes_in_one_call_is_accepted_as_jobs_of_their_own(
        self, kit: Driver
    ) -> None:
        gang = Gang(name="a-gang", size=3, timeout=kit.patience)
        specs = [kit.spec(programs.exit_with(code), gang=gang) for code in range(3)]

        jobs = [job for job in kit.backend.submit_many(specs) if isinstance(job, Job)]

        assert [kit.end(job).exit_code for job in jobs] == [0, 1, 2]

    def test_a_gang_of_which_one_is_refused_can_be_ended(self, kit: Driver) -> None:
        gang = Gang(name="a-gang", size=3, timeout=kit.patience)
        good = kit.spec(programs.sleep_forever(), gang=gang)
        bad = values.evolve(self.unacceptable(kit), gang=gang)
        try:
            refuse_undeclared(kit.backend.name, self.declared(kit.backend), bad)
        except CapabilityError as error:
            pytest.skip(
                f"{error}, which the core refuses before the backend is asked; give a job that the "
                f"platform refuses by the method 'unacceptable'"
            )

        found: Sequence[Job | BackendError] = ()
        # for which none of the call is left
        with contextlib.suppress(ResourceError):
            found = kit.backend.submit_many([good, bad, good])

        assert [type(one) is Job for one in found] in ([True, False, True], [])
        for job in kit.backend.list(kit.run_id):
            kit.backend.kill(job)
            assert kit.end(job).state is JobState.FAILED

    def test_undeclared_processes_are_refused(self, kit: Driver) -> None:
        spec = kit.spec(
            programs.exit_with(0), entry=f"{_ENTRIES}:exit_code_of", processes=2, private=b"\0\0"
        )

        self.is_refused(kit.backend, "fork", lambda: self.submit(kit.backend, spec))

    def test_undeclared_signals_are_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.exit_with(0))

        self.is_refused(kit.backend, "fork", lambda: kit.backend.signal(job, 0, signal.SIGUSR1))

    def test_an_entry_is_called_in_place_of_the_program(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "fork")

        status = kit.run(
            programs.exit_with(99), entry=f"{_ENTRIES}:exit_code_of", private=bytes([7])
        )

        assert status.exit_code == 7

    def test_each_process_of_a_job_gets_its_index_and_has_its_own_exit_code(
        self, kit: Driver
    ) -> None:
        self.skip_unless_declared(kit.backend, "fork")
        codes = [3, 0, 200, 4]

        job = kit.submit(
            programs.exit_with(99),
            entry=f"{_ENTRIES}:exit_code_of",
            private=bytes(codes),
            processes=len(codes),
        )
        status = kit.end(job)

        assert [process.index for process in status.processes] == [0, 1, 2, 3]
        assert [process.exit_code for process in status.processes] == codes
        assert status.exit_code == 3
        assert status.state is JobState.FAILED
        assert kit.backend.status([job])[0].processes == status.processes

    def test_a_job_whose_processes_all_end_well_succeeds(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "fork")

        status = kit.run(
            programs.exit_with(99),
            entry=f"{_ENTRIES}:exit_code_of",
            private=bytes(3),
            processes=3,
        )

        assert status.state is JobState.SUCCEEDED
        assert [process.state for process in status.processes] == [JobState.SUCCEEDED] * 3

    def test_the_death_of_one_process_is_told_while_the_others_run(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "fork")
        job = self._one_dies(kit, index=1, processes=3)

        status = kit.until(job, lambda s: _process(s, 1).state.is_terminal, "a process's death")

        assert _process(status, 1).reason == Reason(ReasonKind.SIGNAL, signal.SIGKILL)
        assert not status.state.is_terminal
        assert not _process(status, 0).state.is_terminal
        kit.backend.kill(job)
        assert [p.exit_code for p in kit.end(job).processes] == [-signal.SIGKILL] * 3

    def test_one_process_of_a_job_can_be_signalled(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "fork")
        job = self._one_dies(kit, index=9, processes=2)
        kit.until(job, lambda s: _process(s, 1).pid is not None, "a process id")

        kit.backend.signal(job, 1, signal.SIGKILL)

        status = kit.until(job, lambda s: _process(s, 1).state.is_terminal, "a process's death")
        assert _process(status, 1).exit_code == -signal.SIGKILL
        assert not _process(status, 0).state.is_terminal
        kit.backend.signal(job, 1, signal.SIGKILL)
        kit.backend.kill(job)

    def test_a_job_can_be_interrupted(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "fork", "follow_logs")
        job = kit.ready(programs.sleep_forever())

        assert kit.backend.interrupt(job)

        assert kit.end(job).reason == Reason(ReasonKind.SIGNAL, signal.SIGINT)
        kit.backend.interrupt(job)

    def test_a_stopped_process_is_told_apart_and_runs_again(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "fork", "suspend")
        job = self._one_dies(kit, index=9, processes=2)
        kit.until(job, lambda s: _process(s, 1).pid is not None, "a process id")

        kit.backend.signal(job, 1, signal.SIGSTOP)
        stopped = kit.until(job, lambda s: _process(s, 1).state is JobState.SUSPENDED, "suspension")
        # without a reason, a pool would take it for suspended by the platform, and wait for it
        assert _process(stopped, 1).reason == Reason(ReasonKind.SIGNAL, signal.SIGSTOP)
        before = len(kit.statuses(job))
        kit.backend.signal(job, 1, signal.SIGCONT)

        again = kit.until(
            job,
            lambda s: _process(s, 1).state is JobState.RUNNING,
            "running again",
            after=before,
        )
        assert _process(again, 0).state is JobState.RUNNING
        kit.backend.kill(job)

    def test_undeclared_detaching_is_refused(self, kit: Driver) -> None:
        spec = kit.spec(programs.exit_with(0), detached=True)

        self.is_refused(kit.backend, "detached", lambda: self.submit(kit.backend, spec))

    def test_a_detached_job_outlives_its_submitter(
        self,
        kit: Driver,
        reopen: Callable[[BackendContext], Backend],
        context: BackendContext,
    ) -> None:
        self.skip_unless_declared(kit.backend, "detached")
        detached = kit.submit(programs.sleep_forever(), detached=True)
        attached = kit.submit(programs.sleep_forever())
        kit.until(detached, lambda status: status.state is JobState.RUNNING, "running")

        kit.backend.close()

        later = reopen(context)
        try:
            assert later.status([detached])[0].state is JobState.RUNNING
            alive = {
                job.id
                for job in later.list(kit.run_id)
                if not later.status([job])[0].state.is_terminal
            }
            assert alive == {detached.id} - {attached.id}
            later.kill(detached)
            for job, status in later.events(kit.run_id):
                if job.id == detached.id and status.state.is_terminal:
                    assert status.exit_code == -signal.SIGKILL
                    break
        finally:
            later.cleanup(kit.run_id)
            later.close()

    @staticmethod
    def _one_dies(kit: Driver, *, index: int, processes: int) -> Job:
        return kit.submit(
            programs.exit_with(99),
            entry=f"{_ENTRIES}:die_or_wait",
            private=bytes([index]),
            processes=processes,
        )


def _process(status: JobStatus, index: int) -> ProcessStatus:
    found = [process for process in status.processes if process.index == index]
    return found[0] if found else ProcessStatus(index=index, state=JobState.PENDING)
