"""Statuses of supervisors and platforms are merged."""

import signal

import pytest

from fiber._base import values
from fiber._launch import status_merge
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

RUNS = ProcessStatus(index=0, state=JobState.RUNNING, pid=7)
DONE = ProcessStatus(
    index=1, state=JobState.SUCCEEDED, pid=8, reason=Reason(ReasonKind.EXIT, 0), exit_code=0
)
SUPERVISOR = ProcessStatus(index=0, state=JobState.RUNNING, pid=6)
REPORTED = JobStatus(state=JobState.RUNNING, host="by itself", processes=(RUNS, DONE))


def ended(code, kind=ReasonKind.EXIT, **more):
    state = JobState.FAILED if code else JobState.SUCCEEDED
    return JobStatus(state=state, exit_code=code, reason=Reason(kind, code), **more)


class TestWhileItRuns:
    @pytest.mark.parametrize("reported,processes", [(None, ()), (REPORTED, (RUNS, DONE))])
    def test_the_supervisors_processes_and_the_platforms_host_count(self, reported, processes):
        platform = JobStatus(state=JobState.RUNNING, host="node 1", processes=(SUPERVISOR,))
        assert status_merge.merge_running(reported, platform) == JobStatus(
            state=JobState.RUNNING, host="node 1", processes=processes
        )

    def test_a_job_that_is_frozen_as_a_whole_is_suspended_in_what_lives_of_it(self):
        why = Reason(ReasonKind.SIGNAL, signal.SIGSTOP)
        stopped = values.evolve(RUNS, state=JobState.SUSPENDED, reason=why)
        reported = values.evolve(REPORTED, processes=(stopped, DONE))
        # as a whole it is not stopped by a signal, and the other way round
        for before, reason in ((reported, None), (REPORTED, why)):
            platform = JobStatus(state=JobState.SUSPENDED, reason=reason)
            found = status_merge.merge_running(before, platform)
            assert found.state is JobState.SUSPENDED
            assert [p.state for p in found.processes] == [JobState.SUSPENDED, JobState.SUCCEEDED]
            assert found.processes[0].reason == reason

    def test_unknown_keeps_what_was_known(self):
        found = status_merge.merge_running(REPORTED, JobStatus(state=JobState.UNKNOWN))
        assert (found.state, found.processes) == (JobState.UNKNOWN, (RUNS, DONE))

    @pytest.mark.parametrize("who", ["supervisor", "platform", "both"])
    def test_draining_is_kept_from_either_reporter(self, who):
        reported = values.evolve(REPORTED, draining=who != "platform")
        platform = JobStatus(state=JobState.RUNNING, draining=who != "supervisor")
        assert status_merge.merge_running(reported, platform).draining
        assert not status_merge.merge_running(REPORTED, JobStatus(state=JobState.RUNNING)).draining


class TestEndsWithoutReport:
    def test_running_processes_end_as_the_platform_reports_and_ended_ones_stay(self):
        platform = ended(137, message="gone", processes=(SUPERVISOR,))
        found = status_merge.merge_ended(platform, REPORTED)
        first, second = found.processes
        killed = Reason(ReasonKind.SIGNAL, 9)
        assert (found.exit_code, found.host) == (-9, "by itself")
        assert (first.exit_code, first.reason, first.message) == (-9, killed, "gone")
        assert second == DONE

    @pytest.mark.parametrize(
        "kind", [ReasonKind.OOM, ReasonKind.EVICTED, ReasonKind.PREEMPTED, ReasonKind.NODE_LOST]
    )
    def test_reasons_that_only_a_platform_knows_stay(self, kind):
        found = status_merge.merge_ended(ended(137, kind), REPORTED)
        assert found.reason.kind is found.processes[0].reason.kind is kind
        assert found.exit_code == -9

    @pytest.mark.parametrize(
        "asked,code",
        [
            ({signal.SIGTERM, signal.SIGKILL}, -signal.SIGKILL),
            ({signal.SIGTERM}, -signal.SIGTERM),
            ({signal.SIGUSR1}, None),
        ],
    )
    def test_a_job_that_was_ended_before_it_ran_ended_by_that(self, asked, code):
        taken = JobStatus(state=JobState.FAILED)
        assert status_merge.merge_ended(taken, None, sent_signals=asked).exit_code == code

    @pytest.mark.parametrize("code", [0, 127, 255])
    def test_codes_of_programs_are_left_alone(self, code):
        assert status_merge.merge_ended(ended(code), None).exit_code == code


def test_a_lost_lease_ends_what_lived():
    found = status_merge.lost(
        REPORTED, Reason(ReasonKind.LEASE), host="node 1", words="nothing was heard"
    )
    assert (found.state, found.reason) == (JobState.FAILED, Reason(ReasonKind.LEASE))
    assert [p.state for p in found.processes] == [JobState.FAILED, JobState.SUCCEEDED]
    assert not found.reason.counts_as_attempt
    assert status_merge.lost(None, Reason(ReasonKind.LEASE), host="", words="w").host is None


class TestDiagnosis:
    @pytest.mark.parametrize(
        "line",
        [
            "/usr/bin/python3: No module named fiber",
            "Error while finding module specification for 'x' (No module named 'fiber')",
            "ModuleNotFoundError: No module named 'fiber._agent.job'",
        ],
    )
    def test_fiber_is_missing(self, line):
        found = status_merge.diagnose(ended(1, host="node 1"), ["something", line])
        assert "fiber is not installed in the Python of node 1" in found
        assert "pip install 'fiber-core==" in found

    @pytest.mark.parametrize(
        "line",
        [
            "sh: 1: python3: not found",
            "bash: line 1: python3: command not found",
            'exec: "python3": executable file not found in $PATH: unknown',
            "/nowhere/python3 cannot be started: No such file or directory",
            "cannot run 'python3': No such file or directory",
            "env: 'python3': No such file or directory",
        ],
    )
    def test_python_is_missing(self, line):
        found = status_merge.diagnose(ended(127, host="node 1", message=line), [])
        assert "python3 on node 1; install Python" in found

    @pytest.mark.parametrize(
        "line",
        [
            "fiber: python3 cannot connect to the parent: No module named 'pynng'",
            "ModuleNotFoundError: No module named 'pynng.sp'",
        ],
    )
    def test_a_package_that_fiber_needs_is_missing(self, line):
        found = status_merge.diagnose(ended(1, host="node 1"), ["something", line])
        assert found.startswith(
            "pynng, which fiber needs, is not installed in the Python of node 1"
        )
        assert "pip install 'fiber-core==" in found

    @pytest.mark.parametrize(
        "line, words",
        [
            ("No module named 'fiber'", "fiber is not installed in the Python of image 'a:1';"),
            ("No module named 'attrs'", "is not installed in the Python of image 'a:1';"),
            ("cannot run 'python3': No such file or directory", "no python3 in image 'a:1';"),
        ],
    )
    def test_an_image_is_named_in_place_of_the_host_that_has_run_it(self, line, words):
        found = status_merge.diagnose(ended(1, host="node 1"), [line], image="a:1")
        assert words in found
        assert "node 1" not in found

    def test_other_failures_quote_the_platforms_message_and_the_last_lines(self):
        status = JobStatus(
            state=JobState.FAILED, reason=Reason(ReasonKind.IMAGE), message="no such image: x"
        )
        assert status_merge.diagnose(status, []) == "IMAGE: no such image: x"
        found = status_merge.diagnose(ended(1, host="node 1", message="ended"), ["a", "b"])
        assert found == "it ended on node 1 before it had reached its parent: ended\n  a\n  b"


BY_SIGTERM = {"state": JobState.FAILED, "reason": Reason(ReasonKind.SIGNAL, 15), "exit_code": -15}


def platform(kind, message="by the platform's will", **more):
    return JobStatus(
        **{"state": JobState.RUNNING, "reason": kind and Reason(kind), "message": message, **more}
    )


class TestTakenAway:
    ENDED = JobStatus(**BY_SIGTERM, processes=(ProcessStatus(index=0, **BY_SIGTERM), DONE))
    LEAVING = platform(ReasonKind.PREEMPTED, "a job of more weight came")

    @pytest.mark.parametrize(
        "why, reason, words",
        [
            (LEAVING, "PREEMPTED", "killed by SIGTERM: PREEMPTED: a job of more weight came"),
            (platform(ReasonKind.TIME_LIMIT, ""), "TIME_LIMIT", "killed by SIGTERM: TIME_LIMIT"),
        ],
    )
    def test_a_signal_that_the_platform_sent_is_told_with_its_reason(self, why, reason, words):
        found = status_merge.explain(self.ENDED, why)
        first, second = found.processes
        assert found.reason == first.reason == why.reason
        assert str(first.reason) == reason
        assert (first.exit_code, first.message) == (-15, words)
        assert found.message == words
        assert second == DONE

    @pytest.mark.parametrize(
        "status,why,asked",
        [
            (ENDED, LEAVING, {int(signal.SIGTERM)}),
            (ENDED, platform(ReasonKind.CANCELLED), {int(signal.SIGKILL)}),
            (ENDED, platform(ReasonKind.OOM), set()),
            (ENDED, None, set()),
            (ENDED, platform(None), set()),
            (ended(3, processes=(DONE,)), LEAVING, set()),
        ],
        ids=[
            "it was sent from here",
            "our own request was carried out",
            "no memory is freed by SIGTERM",
            "no status",
            "no reason",
            "a fault of the work",
        ],
    )
    def test_otherwise_nothing_changes(self, status, why, asked):
        assert status_merge.explain(status, why, sent_signals=asked) is status

    def test_what_was_told_before_the_end_is_its_reason_where_the_end_has_none(self):
        for end in (ended(143), JobStatus(state=JobState.FAILED)):
            found = status_merge.with_reason(end, self.LEAVING)
            assert (found.reason, found.message) == (self.LEAVING.reason, self.LEAVING.message)
        for end in (ended(0), ended(137, ReasonKind.OOM)):
            assert status_merge.with_reason(end, self.LEAVING) is end

    def test_a_cancellation_that_was_our_request_is_told_as_that(self):
        cancelled = JobStatus(state=JobState.FAILED, reason=Reason(ReasonKind.CANCELLED))
        found = status_merge.merge_ended(cancelled, None, sent_signals={signal.SIGKILL})
        assert (found.exit_code, found.reason) == (-9, Reason(ReasonKind.SIGNAL, 9))
