"""Tests of optional features, and of queries.

Gangs, jobs of several processes, detached ones, exec, copies, images, volumes, limits, devices.
"""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from fiber._base import values
from fiber._plugins.backend_choice import refuse_undeclared
from fiber.abc import Backend
from fiber.exceptions import BackendError, CapabilityError, ResourceError
from fiber.model import (
    BackendContext,
    Capacity,
    Check,
    Gang,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    ProcessStatus,
    Reach,
    ReachKind,
    Reason,
    ReasonKind,
    ResourceRequest,
    Volume,
)
from fiber.testing import programs
from fiber.testing.kit.platform import Driver, Platform

_ENTRIES = "fiber.testing.programs"


class Groups(Platform):
    """Tests of gangs, of several processes a job, and of detached jobs."""

    def unacceptable(self, kit: Driver) -> JobSpec:
        """Make a job that the platform never accepts; may be overridden."""
        devices = ResourceRequest(devices={"no-such-kind": 1})
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
        kit.wait_running(detached)

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


class Options(Platform):
    """Tests of features gated by capabilities, and of capacity, reach and checks."""

    def test_undeclared_exec_is_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())

        self.is_refused(kit.backend, "exec", lambda: kit.backend.exec(job, ["true"]))

    def test_exec_returns_the_exit_code_and_keeps_arguments(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "exec", "follow_logs")
        job = kit.ready(programs.sleep_forever())

        for argv, code in (
            (programs.exit_with(7), 7),
            (programs.expect_args("two words", "", 'it\'s "$HOME"\n'), 0),
        ):
            assert kit.backend.exec(job, [self.python, *argv[1:]]) == code

    def test_exec_writes_to_our_output(
        self, kit: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.skip_unless_declared(kit.backend, "exec", "follow_logs")
        job = kit.ready(programs.sleep_forever())
        capfd.readouterr()

        kit.backend.exec(job, [self.python, *programs.print_lines(3)[1:]])

        # the job's own output may arrive in between
        out = capfd.readouterr().out.removeprefix("ready\n")
        assert out.split("\n") == ["line 0", "line 1", "line 2", ""]

    def test_exec_reads_what_it_is_given(self, kit: Driver, tmp_path: Path) -> None:
        self.skip_unless_declared(kit.backend, "exec", "follow_logs")
        job = kit.ready(programs.sleep_forever())
        code = "import sys; sys.exit(sys.stdin.buffer.read() != b'a\\0b')"

        (tmp_path / "stdin").write_bytes(b"a\0b")
        with (tmp_path / "stdin").open("rb") as file:
            assert kit.backend.exec(job, [self.python, "-c", code], stdin=file) == 0
        # a stream without a descriptor does as well
        assert kit.backend.exec(job, [self.python, "-c", code], stdin=io.BytesIO(b"a\0b")) == 0

    def test_undeclared_copying_is_refused(self, kit: Driver, tmp_path: Path) -> None:
        self.is_refused(kit.backend, "copy", lambda: kit.backend.copy(str(tmp_path), "claim:/x"))

    def test_files_go_to_a_volume_and_come_back(
        self, kit: Driver, volume: Volume, tmp_path: Path
    ) -> None:
        self.skip_unless_declared(kit.backend, "copy")
        (tmp_path / "a").write_bytes(bytes(range(256)))

        kit.backend.copy(str(tmp_path / "a"), f"{volume.source}:kit/a")
        kit.backend.copy(f"{volume.source}:kit/a", str(tmp_path / "b"))

        assert (tmp_path / "b").read_bytes() == bytes(range(256))

    def test_undeclared_volumes_are_refused(self, kit: Driver) -> None:
        spec = kit.spec(programs.exit_with(0), volumes=(Volume(source="kit", path="/persistent"),))

        self.is_refused(kit.backend, "volumes", lambda: self.submit(kit.backend, spec))

    def test_what_one_job_writes_to_a_volume_the_next_one_reads(
        self, kit: Driver, volume: Volume
    ) -> None:
        self.skip_unless_declared(kit.backend, "volumes")
        file = f"{volume.path}/{kit.run_id}"
        text = "kept\n"

        assert kit.run(programs.write_file(file, text), volumes=(volume,)).exit_code == 0
        assert kit.run(programs.expect_file(file, text), volumes=(volume,)).exit_code == 0
        closed = attrs.evolve(volume, read_only=True)
        assert kit.run(programs.write_file(file, "x"), volumes=(closed,)).exit_code != 0

    def test_undeclared_images_are_refused(self, kit: Driver, tmp_path: Path) -> None:
        self.is_refused(kit.backend, "images", lambda: kit.backend.prepare_image(str(tmp_path)))

    def test_a_built_image_runs(self, kit: Driver, image_context: str) -> None:
        self.skip_unless_declared(kit.backend, "images")

        image = kit.backend.prepare_image(image_context)

        assert image is not None
        assert kit.run(programs.exit_with(0), image=image).state is JobState.SUCCEEDED

    def test_a_job_that_exceeds_its_memory_does_not_succeed(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "memory_limit")
        limit = ResourceRequest(memory=128)

        assert kit.run(programs.allocate(16), resources=limit).state is JobState.SUCCEEDED
        state = kit.run(programs.allocate(512), resources=limit).state

        if state is JobState.SUCCEEDED:
            self.skip_where_missing(kit.backend, "memory_limit")
        assert state is JobState.FAILED

    def test_a_job_uses_no_more_than_its_cpus(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "cpu_limit", "logs")
        job = kit.submit(programs.burn(4, 2.0), resources=ResourceRequest(cpu=0.5))
        kit.end(job)

        (used,) = kit.backend.logs(job)

        # quotas are kept on average; a busy machine makes it less, never more
        most = 0.5 * 1.5
        if float(used) >= most:
            self.skip_where_missing(kit.backend, "cpu_limit")
        assert float(used) < most

    def test_undeclared_devices_are_refused(self, kit: Driver) -> None:
        spec = kit.spec(programs.exit_with(0), resources=ResourceRequest(devices={"gpu": 1}))

        self.is_refused(kit.backend, "devices", lambda: self.submit(kit.backend, spec))

    def test_devices_are_granted_and_come_back(self, kit: Driver) -> None:
        kind, count, most = self._some_devices(kit)
        as_many_as_it_can_have = ResourceRequest(devices={kind: most})

        for _ in range(count // most + 1):
            # the last one gets them only if the others gave them back
            status = kit.run(programs.exit_with(0), resources=as_many_as_it_can_have)
            assert status.exit_code == 0
        assert kit.backend.capacity().devices[kind] == count

    def test_a_job_waits_for_devices_that_others_hold(self, kit: Driver) -> None:
        kind, count, most = self._some_devices(kit)
        as_many_as_it_can_have = ResourceRequest(devices={kind: most})
        holders = [
            kit.submit(programs.sleep_forever(), resources=as_many_as_it_can_have)
            for _ in range(count // most)
        ]
        kit.wait_running(*holders)

        waiting = kit.submit(programs.exit_with(3), resources=as_many_as_it_can_have)

        assert kit.backend.status([waiting])[0].state is JobState.PENDING
        kit.backend.kill(holders[0])
        assert kit.end(waiting).exit_code == 3

    def test_more_devices_than_there_are_is_an_error(self, kit: Driver) -> None:
        kind, _, _ = self._some_devices(kit)
        spec = kit.spec(programs.exit_with(0), resources=ResourceRequest(devices={kind: 10_000}))

        with pytest.raises((BackendError, ResourceError), match="10000"):
            kit.backend.submit(spec)

    def _some_devices(self, kit: Driver) -> tuple[str, int, int]:
        """A kind of devices, how many the platform has, and how many of them one job can have."""
        self.skip_unless_declared(kit.backend, "devices")
        for kind, count in {**kit.backend.capacity().devices, **self.devices}.items():
            if count:
                return kind, count, self.devices_per_job.get(kind, count)
        pytest.skip("the platform has no devices")

    def test_capacity_is_positive_or_unknown(self, kit: Driver) -> None:
        capacity = kit.backend.capacity()

        assert isinstance(capacity, Capacity)
        assert capacity.cpus is None or capacity.cpus > 0
        assert capacity.memory is None or capacity.memory > 0
        assert all(count >= 0 for count in capacity.devices.values())

    def test_reach_says_how_a_job_and_its_parent_meet(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())

        reach = kit.backend.reach(job)

        assert isinstance(reach, Reach)
        assert reach.kind is ReachKind.DIRECT or reach.why, "say why it is not direct"
        if self.declared(kit.backend).same_host:
            assert reach.kind is ReachKind.DIRECT

    def test_check_finds_a_platform_that_works(self, kit: Driver) -> None:
        checks = list(kit.backend.check())

        assert checks
        assert all(isinstance(check, Check) and check.name for check in checks)
        assert all(check.fix for check in checks if not check.ok), checks
