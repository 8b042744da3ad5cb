"""How jobs are stopped: terminate and kill, which differ, and suspension, which is noticed."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import signal
import time

from fiber.model import Job, JobState, Reason, ReasonKind
from fiber.testing import programs
from fiber.testing.kit.driver import Driver, is_gone
from fiber.testing.kit.platform import Platform
from fiber.testing.witness import Witness

__all__ = ["Stops"]


class Stops(Platform):
    """Tests of the ways to end a job."""

    def test_terminate_ends_a_job_by_sigterm(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs")
        job = kit.ready(programs.sleep_forever())

        kit.backend.terminate(job)

        assert kit.end(job).reason == Reason(ReasonKind.SIGNAL, signal.SIGTERM)

    def test_terminate_lets_a_job_end_as_it_wants(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs")
        job = kit.ready(programs.exit_on_sigterm(9))

        kit.backend.terminate(job, grace=kit.patience)

        assert kit.end(job).exit_code == 9

    def test_terminate_kills_what_is_left_after_the_grace(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs")
        job = kit.ready(programs.ignore_sigterm())

        kit.backend.terminate(job, grace=0.2)

        assert kit.end(job).exit_code == -signal.SIGKILL

    def test_terminate_returns_without_waiting_for_the_end(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs")
        job = kit.ready(programs.ignore_sigterm())

        begin = time.monotonic()
        kit.backend.terminate(job, grace=1000.0)

        assert time.monotonic() - begin < kit.patience
        assert not kit.backend.status([job])[0].state.is_terminal
        kit.backend.kill(job)
        assert kit.end(job).exit_code == -signal.SIGKILL

    def test_terminate_and_kill_may_come_twice_and_after_the_end(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())
        for _ in range(2):
            kit.backend.terminate(job, grace=kit.patience)
        end = kit.end(job)

        for _ in range(2):
            kit.backend.terminate(job)
            kit.backend.kill(job)

        assert kit.backend.status([job])[0].exit_code == end.exit_code

    def test_kill_gives_a_job_no_chance(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs")
        job = kit.ready(programs.exit_on_sigterm(9))

        kit.backend.kill(job)

        status = kit.end(job)
        assert status.exit_code == -signal.SIGKILL
        assert status.reason == Reason(ReasonKind.SIGNAL, signal.SIGKILL)

    def test_kill_ends_the_processes_that_a_job_started(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs", "same_host")
        job = kit.submit(programs.with_child())
        (child,) = kit.said_ready(job)

        kit.backend.kill(job)

        kit.end(job)
        assert is_gone(int(child), kit.patience)

    def test_terminate_ends_the_processes_that_a_job_started(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs", "same_host")
        job = kit.submit(programs.with_child())
        (child,) = kit.said_ready(job)

        kit.backend.terminate(job, grace=0.2)

        kit.end(job)
        assert is_gone(int(child), kit.patience)

    def test_close_ends_the_jobs_of_its_run(self, kit: Driver) -> None:
        self.need(kit.backend, "follow_logs", "same_host")
        job = kit.submit(programs.with_child())
        (child,) = kit.said_ready(job)

        kit.backend.close()

        # "have ended when this returns", so there is nothing to be patient for but reaping
        assert is_gone(int(child), 1.0)

    def test_a_stopped_job_is_suspended_and_not_dead(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        self.need(kit.backend, "suspend")
        job = self._stopped(kit, witness)

        status = kit.backend.status([job])[0]
        assert status.state is JobState.SUSPENDED
        # this is how a pool tells one to replace from one to leave alone
        by_platform = witness is not None and witness.can("suspend")
        why = None if by_platform else Reason(ReasonKind.SIGNAL, signal.SIGSTOP)
        assert status.reason == why

        kit.backend.kill(job)
        assert kit.end(job).exit_code == -signal.SIGKILL

    def test_a_stopped_job_can_be_terminated(self, kit: Driver, witness: Witness | None) -> None:
        self.need(kit.backend, "suspend")
        job = self._stopped(kit, witness)

        kit.backend.terminate(job, grace=0.2)

        assert kit.end(job).exit_code in (-signal.SIGTERM, -signal.SIGKILL)

    def _stopped(self, kit: Driver, witness: Witness | None) -> Job:
        """A job that was told to be suspended."""
        if witness is not None and witness.can("suspend"):
            job = kit.submit(programs.sleep_forever())
            kit.until(job, lambda status: status.state is JobState.RUNNING, "running")
            witness.suspend(job)
        else:
            job = kit.submit(programs.stop_itself())
        kit.until(job, lambda status: status.state is JobState.SUSPENDED, "suspension")
        return job
