"""A started process as its parent sees it."""

import gc
import os
import threading
from multiprocessing.connection import wait
from types import SimpleNamespace

import pytest

from fiber._launch.child import ORPHANED, Child, log_end
from fiber.exceptions import StartError
from fiber.model import Job, JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from waiting import until

RUNNING = JobStatus(state=JobState.RUNNING)


class FakeLauncher:
    start_timeout = 0.05

    def __init__(self):
        self.calls = []

    def terminate(self, child):
        self.calls.append("terminate")

    def kill(self, child):
        self.calls.append("kill")

    def signal(self, child, index, signum):
        self.calls.append((index, signum))

    def settle_output(self):
        self.calls.append("settle output")


def failed(kind, *, number=None, code=None, message=""):
    return JobStatus(
        state=JobState.FAILED, reason=Reason(kind, number), exit_code=code, message=message
    )


def ended(code=0):
    state = JobState.FAILED if code else JobState.SUCCEEDED
    return JobStatus(state=state, reason=Reason(ReasonKind.EXIT, code), exit_code=code)


@pytest.fixture
def launcher():
    return FakeLauncher()


@pytest.fixture
def child(launcher):
    child = Child("id", "Process-1", launcher)
    yield child
    child.close()


def test_it_has_no_code_before_its_end_and_the_exact_one_after_it(child):
    child.changed(RUNNING)
    assert child.poll() is child.returncode is None
    child.changed(ended(7))
    assert child.poll() == child.returncode == 7
    assert child.wait(0) == 7


def test_an_end_that_left_no_code_is_code_1(child):
    child.changed(failed(ReasonKind.NODE_LOST))
    assert child.returncode == 1


def test_wait_returns_when_its_time_is_up(child):
    assert child.wait(0.01) is None


def test_wait_returns_at_the_end(child):
    threading.Timer(0.02, child.changed, [ended(3)]).start()
    assert child.wait(20) == 3


def test_nothing_comes_after_the_end(child):
    child.changed(ended(0))
    child.changed(RUNNING)
    child.changed(ended(5))
    assert child.returncode == 0


def test_each_status_is_passed_on_until_the_end(launcher):
    seen = []
    child = Child("id", "name", launcher, on_status=lambda _, status: seen.append(status))
    for status in (RUNNING, ended(0), ended(1)):
        child.changed(status)
    assert seen == [RUNNING, ended(0)]


def test_signals_reach_it_while_it_runs_and_no_longer(child, launcher):
    child.terminate()
    child.kill()
    child.signal(1, 15)
    child.changed(ended(0))
    child.terminate()
    child.kill()
    child.signal(1, 15)
    assert launcher.calls == ["terminate", "kill", (1, 15)]


class TestPid:
    def test_is_the_platforms_where_it_has_one(self, child):
        child.submitted(Job(id="1", name="n", run_id="r", backend="b", data={"pids": [44]}))
        assert child.pid == 44

    def test_comes_with_the_hello(self, child):
        child.submitted(Job(id="1", name="n", run_id="r", backend="b"))
        hello = SimpleNamespace(hello=SimpleNamespace(pid=45, host="remote-host"))
        threading.Timer(0.01, child.connected, [hello]).start()
        assert child.pid == 45
        assert child.host == "remote-host"

    def test_or_with_a_status(self, child):
        process = ProcessStatus(index=0, state=JobState.RUNNING, pid=46)
        child.changed(JobStatus(state=JobState.RUNNING, host="near", processes=(process,)))
        assert child.pid == 46
        assert child.host == "near"
        assert child.process_status() is process
        assert child.process_status(1) is None

    def test_is_not_waited_for_longer_than_a_start_may_take(self, child):
        child.submitted(Job(id="1", name="n", run_id="r", backend="b"))
        assert child.pid is None

    def test_is_not_waited_for_after_the_end(self, child, launcher):
        launcher.start_timeout = 1000
        child.submitted(Job(id="1", name="n", run_id="r", backend="b"))
        child.changed(failed(ReasonKind.IMAGE))
        assert child.pid is None


class TestSentinel:
    def test_is_readable_at_the_end(self, child):
        sentinel = child.sentinel
        assert wait([sentinel], 0) == []
        child.changed(ended(0))
        assert wait([sentinel], 20) == [sentinel]

    def test_also_where_it_is_asked_for_after_the_end(self, child):
        child.changed(ended(0))
        assert wait([child.sentinel], 20) == [child.sentinel]

    def test_is_released_with_the_child(self, launcher):
        child = Child("id", "name", launcher)
        sentinel = child.sentinel
        child.close()
        child.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sentinel)
        child.changed(ended(0))

    def test_or_when_it_is_not_referenced_any_more(self, launcher):
        child = Child("id", "name", launcher)
        sentinel = child.sentinel
        del child
        gc.collect()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sentinel)


class TestNeverStarted:
    @pytest.mark.parametrize("kind", [ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE, ReasonKind.START])
    def test_is_an_error_with_the_platforms_words(self, child, kind):
        child.changed(failed(kind, message="no such image: x"))
        with pytest.raises(StartError, match=r"Process-1 did not start .*no such image: x"):
            child.raise_if_never_started()

    @pytest.mark.parametrize(
        "status",
        [
            RUNNING,
            ended(0),
            ended(1),
            failed(ReasonKind.SIGNAL, number=9, code=-9),
            failed(ReasonKind.NODE_LOST),
        ],
        ids=["runs", "ended", "failed", "killed", "lost"],
    )
    def test_what_ran_is_none(self, child, status):
        child.changed(status)
        child.raise_if_never_started()
        assert child.failure == ""

    def test_one_that_ran_without_a_word_is_one_once_it_was_killed(self, child):
        child.changed(RUNNING)
        child.set_start_failure("not a word")
        assert child.failure == ""
        child.changed(failed(ReasonKind.SIGNAL, number=9, code=-9))
        with pytest.raises(StartError, match="not a word"):
            child.raise_if_never_started()


class TestWhatItsPickleKeepsAlive:
    def test_is_let_go_once(self, child):
        seen = []
        child.on_release(lambda: seen.append(1))
        child.release()
        child.release()
        assert seen == [1]

    def test_at_once_where_it_has_ended(self, child):
        seen = []
        child.release()
        child.on_release(lambda: seen.append(1))
        assert seen == [1]


def test_lost_with_its_backend_it_has_ended(child):
    child.changed(ORPHANED)
    assert child.status.reason.kind is ReasonKind.NODE_LOST
    assert child.returncode == 1


def test_a_descriptor_cannot_be_sent_along(child):
    with pytest.raises(TypeError, match="use fiber's own Queue"):
        child.duplicate_for_child(1)


class TestLog:
    @pytest.fixture
    def child(self, launcher):
        child = Child("id", "Process-1", launcher, on_status=log_end)
        yield child
        child.close()

    @pytest.mark.parametrize(
        "status,expected",
        [
            (failed(ReasonKind.START, message="no room"), "did not start (START: no room)"),
            (failed(ReasonKind.OOM, code=-9, message="too big"), "was ended (OOM): too big"),
            (failed(ReasonKind.EVICTED, code=-15), "was ended (EVICTED): no reason was given"),
        ],
    )
    def test_an_end_that_no_exit_code_explains_is_logged(self, child, caplog, status, expected):
        child.changed(RUNNING)
        child.changed(status)
        assert caplog.messages == [f"fiber: Process-1 {expected}"]

    @pytest.mark.parametrize("status", [ended(0), ended(3), failed(ReasonKind.SIGNAL, code=-9)])
    def test_one_that_it_explains_is_not(self, child, caplog, status):
        child.changed(status)
        assert not caplog.records

    def test_a_start_that_failed_is_told_by_an_error_to_who_waits_for_it(self, child, caplog):
        waiting = threading.Thread(target=child.wait)
        waiting.start()
        until(lambda: child.is_awaited)
        child.changed(failed(ReasonKind.START, message="no room"))
        waiting.join()
        assert not caplog.records
