"""Whether what a backend tells is so: the platform is asked by other means, see ``witness``."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

from fiber.model import JobState
from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform
from fiber.testing.witness import Witness

__all__ = ["Witnessed"]


class Witnessed(Platform):
    """Tests that believe the platform and not the backend."""

    def test_a_job_that_is_told_to_run_does(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.asking(witness, "is_running")
        job = kit.submit(programs.sleep_forever())

        kit.until(job, lambda status: status.state is JobState.RUNNING, "running")

        assert self.wait_until(lambda: sees.is_running(job))

    def test_a_job_that_ended_by_itself_is_gone(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.asking(witness, "is_running")
        job = kit.submit(programs.exit_with(0))

        kit.end(job)

        assert self.wait_until(lambda: not sees.is_running(job))

    def test_a_killed_job_is_gone_with_all_its_processes(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        self.need(kit.backend, "follow_logs")
        sees = self.asking(witness, "is_running")
        job = kit.ready(programs.with_child())
        assert sees.is_running(job)

        kit.backend.kill(job)

        kit.end(job)
        assert self.wait_until(lambda: not sees.is_running(job))

    def test_a_job_that_was_terminated_is_gone_with_all_its_processes(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        self.need(kit.backend, "follow_logs")
        sees = self.asking(witness, "is_running")
        job = kit.ready(programs.with_child())

        kit.backend.terminate(job, grace=0.2)

        kit.end(job)
        assert self.wait_until(lambda: not sees.is_running(job))

    def test_a_job_that_was_not_told_to_end_runs_on(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        sees = self.asking(witness, "is_running")
        one, other = (kit.submit(programs.sleep_forever()) for _ in range(2))
        kit.until(other, lambda status: status.state is JobState.RUNNING, "running")

        kit.backend.kill(one)

        kit.end(one)
        assert sees.is_running(other)

    def test_close_leaves_no_job_running(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.asking(witness, "is_running")
        job = kit.submit(programs.sleep_forever())
        kit.until(job, lambda status: status.state is JobState.RUNNING, "running")

        kit.backend.close()

        # "have ended when this returns"; a moment for whoever reaps them
        assert self.wait_until(lambda: not sees.is_running(job))

    def test_cleanup_leaves_nothing(self, kit: Driver, witness: Witness | None) -> None:
        sees = self.asking(witness, "left")
        kit.run(programs.exit_with(0))
        kit.submit(programs.sleep_forever())

        kit.backend.cleanup(kit.run_id)

        assert self.wait_until(lambda: not sees.left(kit.run_id)), sees.left(kit.run_id)
