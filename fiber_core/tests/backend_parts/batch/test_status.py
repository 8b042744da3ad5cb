"""What a job's row, its marks and the orders that it got come to."""

import signal

import pytest

from fiber.backend_parts.batch.folder import Ended, Mark
from fiber.backend_parts.batch.status import Told, end_status, live_status, needs_word
from fiber.backend_parts.batch.system import Phase, Row
from fiber.model import JobState, Reason, ReasonKind

TERM = Reason(ReasonKind.SIGNAL, 15)
KILLED = Reason(ReasonKind.SIGNAL, 9)
STARTED = Mark(host="n1", pid=7)


def row(phase, **more):
    return Row(id="1", phase=phase, run_id="0badcafe", **more)


def ended(code, reason):
    return Mark(host="n1", pid=7, ended=Ended(code, reason))


def told(signum):
    return Told(signum=signum, at=0.0, kill_at=0.0)


class TestJobsThatHaveNotEnded:
    def test_a_job_runs_once_its_program_was_started_and_not_when_it_has_a_node(self):
        placed = row(Phase.PLACED, host="n1")

        starting = live_status(placed, Mark(), None)
        running = live_status(placed, STARTED, None)

        assert (starting.state, starting.is_starting) == (JobState.PENDING, True)
        assert "n1" in starting.message
        assert (running.state, running.host) == (JobState.RUNNING, "n1")
        assert running.processes[0].pid == 7

    def test_a_job_that_waits_says_why(self):
        status = live_status(row(Phase.WAITING, message="waits: Resources"), Mark(), None)

        assert (status.state, status.message) == (JobState.PENDING, "waits: Resources")
        assert live_status(None, Mark(), None).state is JobState.PENDING

    def test_a_mark_of_the_start_is_newer_than_a_row(self):
        assert live_status(row(Phase.WAITING), STARTED, None).state is JobState.RUNNING

    def test_a_job_that_its_system_ends_drains_for_as_long_as_it_has(self):
        status = live_status(row(Phase.ENDING, host="n1"), STARTED, 30.0)

        assert (status.state, status.draining) == (JobState.RUNNING, True)
        assert status.seconds_left == 30.0

    def test_a_job_whose_time_limit_is_near_drains_for_that_reason(self):
        def status(left):
            return live_status(row(Phase.PLACED, seconds_left=left), STARTED, 30.0, 60.0)

        assert not status(61.0).draining
        assert not status(None).draining
        for left in (60.0, 58.0):
            near = status(left)
            assert (near.draining, near.seconds_left) == (True, 60.0)
            assert near.reason == Reason(ReasonKind.TIME_LIMIT)

    def test_a_suspended_job_is_one_by_the_platform(self):
        status = live_status(row(Phase.SUSPENDED, host="n1"), STARTED, None)

        assert (status.state, status.reason) == (JobState.SUSPENDED, None)


class TestEnds:
    @pytest.mark.parametrize(
        "of_system, mark, order, code, reason",
        [
            # the program's own word counts
            (
                row(Phase.ENDED, exit_code=9),
                ended(9, Reason(ReasonKind.EXIT, 9)),
                None,
                9,
                "EXIT(9)",
            ),
            (row(Phase.ENDED, exit_code=137), ended(-9, KILLED), None, -9, "SIGNAL(9)"),
            (None, ended(3, Reason(ReasonKind.EXIT, 3)), None, 3, "EXIT(3)"),
            # the system's word on who sent a signal
            *(
                (row(Phase.ENDED, reason=Reason(kind)), ended(-15, TERM), None, -15, kind.name)
                for kind in (ReasonKind.TIME_LIMIT, ReasonKind.PREEMPTED, ReasonKind.CANCELLED)
            ),
            (row(Phase.ENDED, reason=Reason(ReasonKind.OOM)), ended(-9, KILLED), None, -9, "OOM"),
            # but for orders of this program
            (
                row(Phase.ENDED, reason=Reason(ReasonKind.CANCELLED)),
                ended(-15, TERM),
                15,
                -15,
                "SIGNAL(15)",
            ),
            (
                row(Phase.ENDED, exit_code=0, reason=Reason(ReasonKind.CANCELLED)),
                Mark(),
                9,
                -9,
                "SIGNAL(9)",
            ),
            # what nobody marked
            (row(Phase.ENDED, exit_code=-9), STARTED, None, -9, "SIGNAL(9)"),
            (row(Phase.ENDED, exit_code=2), Mark(), None, 2, "EXIT(2)"),
            (None, STARTED, None, None, "UNKNOWN"),
            (
                row(Phase.ENDED, exit_code=0, reason=Reason(ReasonKind.NODE_LOST)),
                STARTED,
                None,
                None,
                "NODE_LOST",
            ),
            (
                row(Phase.ENDED, exit_code=0, reason=Reason(ReasonKind.CANCELLED)),
                Mark(),
                None,
                None,
                "CANCELLED",
            ),
        ],
    )
    def test_the_end_is_told_by_whoever_knows_it(self, of_system, mark, order, code, reason):
        status = end_status("Fake", of_system, mark, None if order is None else told(order))

        assert status.state is JobState.FAILED
        assert (status.exit_code, str(status.reason)) == (code, reason)

    def test_a_program_that_ended_well_has_whatever_its_system_did_to_it(self):
        cut = row(Phase.ENDED, exit_code=-15, reason=Reason(ReasonKind.PREEMPTED))

        status = end_status("Fake", cut, ended(0, Reason(ReasonKind.EXIT, 0)), None)

        assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)

    def test_a_program_that_could_not_be_started_is_told_in_words(self):
        mark = Mark(ended=Ended(127, Reason(ReasonKind.START), "cannot run 'x'"))

        status = end_status("Fake", row(Phase.ENDED, exit_code=127), mark, None)

        assert status.reason == Reason(ReasonKind.START)
        assert status.message == "cannot run 'x'"

    @pytest.mark.parametrize(
        "end, order, waits",
        [
            (Ended(-15, TERM), None, True),
            (Ended(128 + signal.SIGKILL, Reason(ReasonKind.EXIT, 137)), None, True),
            (Ended(-15, TERM), 15, False),
            (Ended(3, Reason(ReasonKind.EXIT, 3)), None, False),
            (Ended(0, Reason(ReasonKind.EXIT, 0)), None, False),
        ],
    )
    def test_only_an_end_by_a_strangers_signal_waits_for_the_systems_word(self, end, order, waits):
        assert needs_word(end, None if order is None else told(order)) is waits
