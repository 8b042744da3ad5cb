"""Tests of submission, statuses, events, termination and suspension of jobs."""

from __future__ import annotations

import pickle
import signal
import threading
import time

import attrs
import pytest

from fiber.abc import Backend
from fiber.exceptions import BackendUnavailableError, SubmitError, UnknownJobError
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind
from fiber.testing import programs
from fiber.testing.kit.platform import Driver, Platform, is_gone
from fiber.testing.witness import Witness

# ruff: noqa: D102  a test's name is its sentence


_PLAIN = (str, int, float, bool, bytes, type(None))


class Lifecycle(Platform):
    """Tests of submission, statuses and events."""

    def test_a_job_is_plain_data_that_can_be_pickled(self, kit: Driver) -> None:
        job = kit.submit(programs.exit_with(0), name="plain")

        assert (job.name, job.run_id, job.backend) == ("plain", kit.run_id, kit.backend.name)
        assert job.id
        assert _is_plain(job.data), job.data
        copy = pickle.loads(pickle.dumps(job))
        assert copy == job
        assert kit.backend.status([copy])[0].state in JobState

    def test_of_jobs_that_come_in_one_call_each_is_answered_in_its_place(self, kit: Driver) -> None:
        specs = [kit.spec(programs.exit_with(code), name=f"many-{code}") for code in (1, 0, 2)]
        jobs = kit.backend.submit_many(specs)

        for job, spec in zip(jobs, specs, strict=True):
            assert isinstance(job, Job), job
            assert job.name == spec.name
        assert len({job.id for job in jobs if isinstance(job, Job)}) == len(specs)
        assert [kit.end(job).exit_code for job in jobs if isinstance(job, Job)] == [1, 0, 2]

    def test_a_word_that_jobs_will_come_starts_none(self, kit: Driver) -> None:
        kit.watch()
        for _ in range(3):
            kit.backend.warm_up()
        assert list(kit.backend.list(kit.run_id)) == []

        job = kit.submit(programs.sleep_forever())

        assert [one.id for one in kit.backend.list(kit.run_id)] == [job.id]

    def test_a_job_that_ends_well_succeeds(self, kit: Driver) -> None:
        status = kit.run(programs.exit_with(0))

        assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)
        assert status.reason in (None, Reason(ReasonKind.EXIT, 0))

    @pytest.mark.parametrize("code", [1, 2, 7, 127, 137, 255])
    def test_exit_codes_are_exact(self, kit: Driver, code: int) -> None:
        status = kit.run(programs.exit_with(code))

        assert status.state is JobState.FAILED
        assert status.exit_code == code
        assert status.reason == Reason(ReasonKind.EXIT, code)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
    def test_signals_are_exact(self, kit: Driver, number: signal.Signals) -> None:
        status = kit.run(programs.die_by(number))

        assert status.state is JobState.FAILED
        assert status.exit_code == -number
        assert status.reason == Reason(ReasonKind.SIGNAL, number)

    def test_a_program_that_does_not_exist_is_said_to_be_the_cause(self, kit: Driver) -> None:
        missing = "/no/such/program-of-the-kit"
        spec = attrs.evolve(kit.spec(programs.exit_with(0)), argv=(missing,))
        try:
            status = kit.end(kit.backend.submit(spec))
        except SubmitError as error:
            words = str(error)
        else:
            assert status.state is JobState.FAILED
            assert status.reason is not None
            assert status.reason.kind is ReasonKind.START
            words = status.message
        assert missing in words

    def test_terminal_states_stick(self, kit: Driver) -> None:
        job = kit.submit(programs.exit_with(3))
        end = kit.end(job)

        for _ in range(3):
            (again,) = kit.backend.status([job])
            assert (again.state, again.exit_code, again.reason) == (
                end.state,
                end.exit_code,
                end.reason,
            )
        kit.backend.terminate(job)
        kit.backend.kill(job)
        assert kit.backend.status([job])[0].exit_code == 3

    def test_events_tell_what_was_before_the_stream_was_opened(self, kit: Driver) -> None:
        running = kit.submit(programs.sleep_forever())
        ended = kit.submit(programs.exit_with(3))
        if self.declared(kit.backend).follow_logs:
            # its lines end when it does, so that it has ended before the stream is opened
            list(kit.backend.logs(ended, follow=True))

        kit.watch()

        assert kit.end(ended).exit_code == 3
        kit.wait_running(running)

    def test_events_of_another_run_do_not_come(self, kit: Driver, other: Driver) -> None:
        kit.watch()
        job = other.submit(programs.exit_with(3))
        other.end(job)
        kit.run(programs.exit_with(0))

        assert kit.statuses(job) == []

    def test_status_of_many_comes_in_their_order(self, kit: Driver) -> None:
        jobs = [kit.submit(programs.exit_with(code)) for code in range(5)]
        for job in jobs:
            kit.end(job)

        statuses = kit.backend.status([*reversed(jobs), jobs[0]])

        assert [status.exit_code for status in statuses] == [4, 3, 2, 1, 0, 0]
        assert list(kit.backend.status([])) == []

    def test_an_unknown_job_is_an_error_of_its_own(self, kit: Driver) -> None:
        known = kit.submit(programs.exit_with(0))
        unknown = Job(
            id="00000000-no-such-job", name="x", run_id=kit.run_id, backend=kit.backend.name
        )

        with pytest.raises(UnknownJobError, match="no-such-job"):
            kit.backend.status([known, unknown])
        with pytest.raises(UnknownJobError, match="no-such-job"):
            kit.backend.terminate(unknown)
        with pytest.raises(UnknownJobError, match="no-such-job"):
            kit.backend.kill(unknown)
        if self.declared(kit.backend).logs:
            with pytest.raises(UnknownJobError, match="no-such-job"):
                list(kit.backend.logs(unknown))

    def test_a_platform_that_cannot_be_asked_is_an_error_of_its_own(
        self, unreachable: Backend
    ) -> None:
        kit = Driver(unreachable, "0badcafe", python=self.python, image=self.image, patience=1)
        job = Job(id="x", name="x", run_id="0badcafe", backend=unreachable.name)

        for ask in (
            lambda: kit.submit(programs.exit_with(0)),
            lambda: unreachable.status([job]),
            lambda: unreachable.list("0badcafe"),
            lambda: unreachable.kill(job),
            lambda: unreachable.terminate(job),
            unreachable.capacity,
        ):
            with pytest.raises(BackendUnavailableError):
                ask()

    def test_the_check_of_a_platform_that_cannot_be_asked_says_so_with_a_fix(
        self, unreachable: Backend
    ) -> None:
        checks = list(unreachable.check())

        failed = [check for check in checks if not check.ok]
        assert failed, checks
        assert all(check.fix for check in failed), failed

    def test_twenty_threads_may_submit_at_once(self, kit: Driver) -> None:
        jobs: dict[int, Job] = {}
        failures: list[BaseException] = []
        start = threading.Barrier(20)

        def submit(code: int) -> None:
            try:
                start.wait(kit.patience)
                jobs[code] = kit.submit(programs.exit_with(code))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=submit, args=(code,)) for code in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert len({job.id for job in jobs.values()}) == 20
        assert {code: kit.end(job).exit_code for code, job in jobs.items()} == {
            code: code for code in range(20)
        }

    def test_any_name_will_do_and_twice(self, kit: Driver) -> None:
        name = 'My Job/№ 1: it\'s "quoted" ' + "x" * 80
        first = kit.submit(programs.exit_with(0), name=name)
        second = kit.submit(programs.exit_with(0), name=name)

        assert first.id != second.id
        assert first.name == second.name == name
        assert [kit.end(job).state for job in (first, second)] == [JobState.SUCCEEDED] * 2

    def test_jobs_of_a_run_are_listed(self, kit: Driver) -> None:
        jobs = [kit.submit(programs.sleep_forever()) for _ in range(2)]

        assert {job.id for job in kit.backend.list(kit.run_id)} == {job.id for job in jobs}

    def test_jobs_are_listed_by_run(self, kit: Driver, other: Driver) -> None:
        mine = kit.submit(programs.sleep_forever())
        # others see it once it is there
        theirs = other.ready(programs.sleep_forever())

        assert [job.id for job in kit.backend.list(kit.run_id)] == [mine.id]
        assert [job.id for job in kit.backend.list(other.run_id)] == [theirs.id]
        assert {mine.id, theirs.id} <= {job.id for job in kit.backend.list()}

    def test_cleanup_ends_and_removes_a_run(self, kit: Driver) -> None:
        kit.submit(programs.sleep_forever())
        kit.run(programs.exit_with(0))

        kit.backend.cleanup(kit.run_id)
        kit.backend.cleanup(kit.run_id)

        assert list(kit.backend.list(kit.run_id)) == []

    def test_cleanup_ends_no_other_run(self, kit: Driver, other: Driver) -> None:
        theirs = other.submit(programs.sleep_forever())
        kit.submit(programs.sleep_forever())

        kit.backend.cleanup(kit.run_id)
        kit.backend.close()

        assert not other.backend.status([theirs])[0].state.is_terminal
        other.backend.kill(theirs)
        assert other.end(theirs).state is JobState.FAILED

    def test_a_run_can_be_cleaned_up_by_another_program(self, kit: Driver, other: Driver) -> None:
        theirs = other.submit(programs.sleep_forever())
        # the stream is open before the end, so that it reports it
        other.wait_running(theirs)

        kit.backend.cleanup(other.run_id)

        assert other.end(theirs).state is JobState.FAILED

    def test_cleanup_of_a_run_that_never_was_is_no_error(self, kit: Driver) -> None:
        kit.backend.cleanup("00c0ffee")

    def test_close_may_come_twice(self, kit: Driver) -> None:
        kit.submit(programs.sleep_forever())

        kit.backend.close()
        kit.backend.close()

    def test_a_status_has_the_values_its_state_calls_for(self, kit: Driver) -> None:
        job = kit.submit(programs.exit_with(1))
        kit.end(job)

        statuses = [*kit.statuses(job), *kit.backend.status([job])]
        assert all(isinstance(status, JobStatus) for status in statuses)
        for status in statuses:
            assert (status.exit_code is not None) == status.state.is_terminal, status
            if status.state is JobState.FAILED:
                assert status.reason is not None, status


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for item in value.items() for part in item)
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)


class Stops(Platform):
    """Tests of the ways to end a job."""

    def test_terminate_ends_a_job_by_sigterm(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.ready(programs.sleep_forever())

        kit.backend.terminate(job)

        assert kit.end(job).reason == Reason(ReasonKind.SIGNAL, signal.SIGTERM)

    def test_terminate_lets_a_job_end_as_it_wants(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.ready(programs.exit_on_sigterm(9))

        kit.backend.terminate(job, grace=kit.patience)

        assert kit.end(job).exit_code == 9

    def test_terminate_kills_what_is_left_after_the_grace(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.ready(programs.ignore_sigterm())

        kit.backend.terminate(job, grace=0.2)

        assert kit.end(job).exit_code == -signal.SIGKILL

    def test_terminate_returns_without_waiting_for_the_end(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
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
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.ready(programs.exit_on_sigterm(9))

        kit.backend.kill(job)

        status = kit.end(job)
        assert status.exit_code == -signal.SIGKILL
        assert status.reason == Reason(ReasonKind.SIGNAL, signal.SIGKILL)

    def test_kill_ends_the_processes_that_a_job_started(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs", "same_host")
        job = kit.submit(programs.with_child())
        (child,) = kit.wait_ready(job)

        kit.backend.kill(job)

        kit.end(job)
        assert is_gone(int(child), kit.patience)

    def test_terminate_ends_the_processes_that_a_job_started(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs", "same_host")
        job = kit.submit(programs.with_child())
        (child,) = kit.wait_ready(job)

        kit.backend.terminate(job, grace=0.2)

        kit.end(job)
        assert is_gone(int(child), kit.patience)

    def test_close_ends_the_jobs_of_its_run(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs", "same_host")
        job = kit.submit(programs.with_child())
        (child,) = kit.wait_ready(job)

        kit.backend.close()

        # "have ended when this returns", so only reaping may take a moment
        assert is_gone(int(child), 1.0)

    def test_a_stopped_job_is_suspended_and_not_dead(
        self, kit: Driver, witness: Witness | None
    ) -> None:
        self.skip_unless_declared(kit.backend, "suspend")
        job = self._stopped(kit, witness)

        status = kit.backend.status([job])[0]
        assert status.state is JobState.SUSPENDED
        # the reason by which a pool decides to replace a job or to wait for it
        by_platform = witness is not None and witness.can("suspend")
        why = None if by_platform else Reason(ReasonKind.SIGNAL, signal.SIGSTOP)
        assert status.reason == why

        kit.backend.kill(job)
        assert kit.end(job).exit_code == -signal.SIGKILL

    def test_a_stopped_job_can_be_terminated(self, kit: Driver, witness: Witness | None) -> None:
        self.skip_unless_declared(kit.backend, "suspend")
        job = self._stopped(kit, witness)

        kit.backend.terminate(job, grace=0.2)

        assert kit.end(job).exit_code in (-signal.SIGTERM, -signal.SIGKILL)

    def _stopped(self, kit: Driver, witness: Witness | None) -> Job:
        """Start a job and wait until it is reported as suspended."""
        name = kit.backend.name
        if witness is not None and witness.can("suspend"):
            job = kit.submit(programs.sleep_forever())
            kit.wait_running(job)
            witness.suspend(job)
        elif self._notices_stops(kit):
            job = kit.submit(programs.stop_itself())
        else:
            pytest.skip(
                f"nobody here can suspend a job of {name}: a witness with the method 'suspend' can, "
                f"by the platform's own tool; a program that stops itself is not noticed"
            )
        kit.until(job, lambda status: status.state is JobState.SUSPENDED, "suspension")
        return job

    def _notices_stops(self, kit: Driver) -> bool:
        if self.notices_stops is not None:
            return self.notices_stops
        return self.declared(kit.backend).same_host
