"""Tests of faults, with detection times, of a backend's reports against a witness, and of scale."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fiber.abc import Backend
from fiber.model import Job, JobState, JobStatus, ReasonKind
from fiber.testing import programs
from fiber.testing.kit.core import Master, Programs
from fiber.testing.kit.platform import Driver, Platform
from fiber.testing.witness import Witness

Measure = Callable[[str, float], None]


def _record(results: Iterable[Mapping[str, Any]], measure: Measure) -> None:
    for facts in results:
        for what, number in facts.get("measured", {}).items():
            measure(what, number)


class Faults(Programs):
    """Tests that deaths are noticed; detection times are measured, the only bound is ``patience``."""

    level = 4

    def test_a_job_that_a_stranger_kills_is_noticed(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        sees = self.require_witness(witness, "kill")
        job = kit.submit(programs.sleep_forever())
        kit.wait_running(job)

        if sees.can("is_running"):
            self.wait_until_seen(sees, job)
        since = time.monotonic()
        status = self._killed(kit, sees, job)

        measure("seconds until a killed job is told", time.monotonic() - since)
        assert status.state is JobState.FAILED
        assert status.reason is not None
        # OOM must be proven, and here it is not
        assert status.reason.kind is not ReasonKind.OOM
        assert kit.backend.status([job])[0].state is JobState.FAILED

    def test_a_job_that_kills_itself_is_noticed(self, kit: Driver, measure: Measure) -> None:
        kit.watch()
        since = time.monotonic()
        job = kit.submit(programs.die_by(signal.SIGKILL))

        assert kit.end(job).exit_code == -signal.SIGKILL

        measure("seconds from submission to a told death", time.monotonic() - since)

    def test_one_death_disturbs_no_other_job(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.require_witness(witness, "kill", "is_running")
        jobs = [kit.submit(programs.sleep_forever()) for _ in range(3)]
        kit.wait_running(*jobs)
        self.wait_until_seen(sees, *jobs)

        self._killed(kit, sees, jobs[1])

        assert [sees.is_running(job) for job in jobs] == [True, False, True]
        states = [status.state for status in kit.backend.status(jobs)]
        assert states == [JobState.RUNNING, JobState.FAILED, JobState.RUNNING]

    def _killed(self, kit: Driver, sees: Witness, job: Job) -> JobStatus:
        """Make the witness kill a job; returns its terminal status."""
        sees.kill(job)
        try:
            return kit.end(job)
        except AssertionError:
            if sees.can("is_running") and sees.is_running(job):
                msg = (
                    f"{type(sees).__name__}.kill() ended nothing of {job.name}, which still runs: "
                    f"it has to end the job's processes"
                )
                raise AssertionError(msg) from None
            raise

    def test_events_go_on_after_their_stream_was_cut(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        sees = self.require_witness(witness, "cut_events")
        before = kit.submit(programs.sleep_forever())
        kit.wait_running(before)

        sees.cut_events()
        # changes without a connection are reported too
        kit.backend.kill(before)
        since = time.monotonic()
        after = kit.submit(programs.exit_with(3))

        assert kit.end(before).exit_code == -signal.SIGKILL
        assert kit.end(after).exit_code == 3
        measure("seconds until events go on", time.monotonic() - since)

    @pytest.mark.parametrize("how", ["kill", "terminate"])
    def test_a_job_that_is_ended_before_it_is_up_ends_though_its_host_is_lost(
        self, kit: Driver, witness: Witness | None, measure: Measure, how: str
    ) -> None:
        sees = self.require_witness(witness, "lost_host")
        with sees.lost_host():
            job = kit.submit(programs.sleep_forever())
            kit.until(job, lambda status: status.host is not None, "a host")

            since = time.monotonic()
            getattr(kit.backend, how)(job)
            status = kit.end(job)

            measure("seconds until an end that nobody confirms is told", time.monotonic() - since)
            assert status.state is JobState.FAILED
            assert status.reason is not None
            assert status.reason.kind is ReasonKind.NODE_LOST
            # its status is terminal, and a second call reports nothing
            getattr(kit.backend, how)(job)
            assert kit.backend.status([job])[0].state is JobState.FAILED

    @pytest.mark.timeout(300)
    def test_a_killed_worker_loses_no_task(
        self, program: Callable[..., Master], measure: Measure
    ) -> None:
        _record(program("killed_worker").end(), measure)

    @pytest.mark.timeout(300)
    def test_a_task_that_closes_its_workers_descriptors_hangs_nobody(
        self, program: Callable[..., Master], measure: Measure
    ) -> None:
        _record(program("closed_descriptors").end(), measure)

    @pytest.mark.timeout(300)
    def test_a_platform_that_cannot_be_asked_for_a_while_is_waited_for(
        self, program: Callable[..., Master], witness: Witness | None, measure: Measure
    ) -> None:
        sees = self.require_witness(witness, "go_away", "come_back")
        master = program("outage")
        master.wait_for_fact("ready")
        sees.go_away()
        try:
            master.wait_for_fact("waiting")
        finally:
            sees.come_back()

        _record(master.end(), measure)

    @pytest.mark.timeout(300)
    def test_a_worker_that_has_to_go_finishes_its_task_and_hands_over_the_rest(
        self, backend: Backend, program: Callable[..., Master], measure: Measure
    ) -> None:
        self.skip_unless_declared(backend, "drain")
        _record(program("drained_worker").end(), measure)

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    def test_a_master_that_dies_leaves_no_process(
        self,
        program: Callable[..., Master],
        witness: Witness | None,
        measure: Measure,
        number: signal.Signals,
    ) -> None:
        sees = self.require_witness(witness, "left")
        master = program("busy_pool")
        run_id = master.wait_for_fact("run")
        master.wait_for_fact("ready")

        since = time.monotonic()
        master.killed(number)

        assert self.wait_until(lambda: not sees.left(run_id)), sees.left(run_id)
        measure("seconds until nothing is left of a dead master", time.monotonic() - since)


class Witnessed(Platform):
    """Tests of a backend's reports against what a witness sees."""

    def test_a_job_that_is_told_to_run_does(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.require_witness(witness, "is_running")
        job = kit.submit(programs.sleep_forever())

        kit.wait_running(job)

        self.wait_until_seen(sees, job)

    def test_a_job_that_ended_by_itself_is_gone(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.require_witness(witness, "is_running")
        job = kit.submit(programs.exit_with(0))

        kit.end(job)

        assert self.wait_until(lambda: not sees.is_running(job))

    def test_a_killed_job_is_gone_with_all_its_processes(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        sees = self.require_witness(witness, "is_running")
        job = kit.ready(programs.with_child())
        assert sees.is_running(job)

        kit.backend.kill(job)

        kit.end(job)
        assert self.wait_until(lambda: not sees.is_running(job))

    def test_a_job_that_was_terminated_is_gone_with_all_its_processes(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        sees = self.require_witness(witness, "is_running")
        job = kit.ready(programs.with_child())

        kit.backend.terminate(job, grace=0.2)

        kit.end(job)
        assert self.wait_until(lambda: not sees.is_running(job))

    def test_a_job_that_was_not_told_to_end_runs_on(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        sees = self.require_witness(witness, "is_running")
        one, other = (kit.submit(programs.sleep_forever()) for _ in range(2))
        kit.wait_running(other)
        self.wait_until_seen(sees, other)

        kit.backend.kill(one)

        kit.end(one)
        assert sees.is_running(other), kit.backend.status([other])

    def test_close_leaves_no_job_running(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.require_witness(witness, "is_running")
        job = kit.submit(programs.sleep_forever())
        kit.wait_running(job)

        kit.backend.close()

        # "have ended when this returns"; a moment for whoever reaps them
        assert self.wait_until(lambda: not sees.is_running(job))

    def test_cleanup_leaves_nothing(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.require_witness(witness, "left")
        kit.run(programs.exit_with(0))
        kit.submit(programs.sleep_forever())

        kit.backend.cleanup(kit.run_id)

        assert self.wait_until(lambda: not sees.left(kit.run_id)), sees.left(kit.run_id)


#: threads that submit; a master has few of them
_THREADS = 8
#: requests a job may cost from its submission to its end, in all
_CALLS_PER_JOB = 12


class Scale(Programs):
    """Tests of many jobs."""

    level = 5

    #: number of jobs at once
    many: int = 32
    #: seconds for which nothing happens
    idle: float = 3.0

    def test_many_jobs_end_and_every_end_is_told(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        kit.watch()
        counts = witness is not None and witness.can("calls")
        before = witness.calls() if witness is not None and counts else 0
        since = time.monotonic()

        jobs = self._submitted(kit, [programs.exit_with(code % 7) for code in range(self.many)])
        codes = [kit.end(job).exit_code for job in jobs]

        measure("jobs", self.many)
        measure("jobs a second", self.many / (time.monotonic() - since))
        assert codes == [code % 7 for code in range(self.many)]
        if witness is not None and counts:
            calls = (witness.calls() - before) / self.many
            measure("calls of the engine a job", calls)
            assert calls <= _CALLS_PER_JOB

    def test_many_jobs_run_at_once(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        since = time.monotonic()
        jobs = self._submitted(kit, [programs.sleep_forever()] * self.many)
        kit.wait_running(*jobs)
        measure("seconds until all run", time.monotonic() - since)

        assert {job.id for job in kit.backend.list(kit.run_id)} == {job.id for job in jobs}
        if witness is not None and witness.can("is_running"):
            self.wait_until_seen(witness, *jobs)
        since = time.monotonic()
        kit.backend.cleanup(kit.run_id)
        measure("seconds to clean up", time.monotonic() - since)

    def test_one_question_asks_for_many_statuses(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        sees = self.require_witness(witness, "calls")
        jobs = self._submitted(kit, [programs.sleep_forever()] * self.many)
        kit.wait_running(*jobs)

        before = sees.calls()
        kit.backend.status(jobs)

        measure("calls of the engine for all statuses", sees.calls() - before)
        assert sees.calls() - before < self.many / 2

    def test_nothing_is_asked_while_nothing_happens(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        sees = self.require_witness(witness, "calls")
        jobs = self._submitted(kit, [programs.sleep_forever()] * 4)
        kit.wait_running(*jobs)

        before = sees.calls()
        # idle time, in which no request should be sent
        threading.Event().wait(self.idle)

        rate = (sees.calls() - before) / self.idle
        measure("calls of the engine a second while nothing happens", rate)
        assert rate <= 1, "wait for events; do not ask again and again"

    @pytest.mark.timeout(300)
    def test_a_pool_of_many_workers_does_many_tasks(
        self, program: Callable[..., Master], measure: Measure
    ) -> None:
        _record(program("many_tasks", str(self.many // 2), "20000").end(), measure)

    @staticmethod
    def _submitted(kit: Driver, argvs: list[tuple[str, ...]]) -> list[Job]:
        """Submit from several threads; returns the jobs in the order of their programs."""
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(kit.submit, argvs))
