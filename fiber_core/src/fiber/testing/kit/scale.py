"""Tests of scale: many jobs at once, and the number of requests to the engine."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from fiber.model import Job, JobState
from fiber.testing import programs
from fiber.testing.kit.core import Programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.faults import Measure
from fiber.testing.kit.master import Master
from fiber.testing.witness import Witness

__all__ = ["Scale"]

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
        for job in jobs:
            kit.until(job, lambda status: status.state is JobState.RUNNING, "running")
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
        for job in jobs:
            kit.until(job, lambda status: status.state is JobState.RUNNING, "running")

        before = sees.calls()
        kit.backend.status(jobs)

        measure("calls of the engine for all statuses", sees.calls() - before)
        assert sees.calls() - before < self.many / 2

    def test_nothing_is_asked_while_nothing_happens(
        self, kit: Driver, witness: Witness | None, measure: Measure
    ) -> None:
        sees = self.require_witness(witness, "calls")
        jobs = self._submitted(kit, [programs.sleep_forever()] * 4)
        for job in jobs:
            kit.until(job, lambda status: status.state is JobState.RUNNING, "running")

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
        for facts in program("many_tasks", str(self.many // 2), "20000").end():
            for what, number in facts.get("measured", {}).items():
                measure(what, number)

    @staticmethod
    def _submitted(kit: Driver, argvs: list[tuple[str, ...]]) -> list[Job]:
        """Submit from several threads; returns the jobs in the order of their programs."""
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(argvs)):
            todo.put(index)
        jobs: dict[int, Job] = {}
        failures: list[BaseException] = []

        def submit() -> None:
            try:
                while not failures:
                    index = todo.get_nowait()
                    jobs[index] = kit.submit(argvs[index])
            except queue.Empty:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=submit) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [jobs[index] for index in range(len(argvs))]
