"""A started process as its parent sees it."""

import contextlib
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from fiber._launch.child import ORPHANED, Child, log_end
from fiber.exceptions import StartError
from fiber.model import Job, JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from tasks_world import KILLED, RUNNING, ended
from waiting import until


def failed(kind, *, code=None, message=""):
    return JobStatus(state=JobState.FAILED, reason=Reason(kind), exit_code=code, message=message)


@pytest.fixture
def launcher():
    return Mock(start_timeout=20)


@pytest.fixture
def child(launcher):
    with contextlib.closing(Child("id", "Process-1", launcher)) as child:
        yield child


@pytest.mark.parametrize(
    "end,code", [(ended(7), 7), (failed(ReasonKind.NODE_LOST), 1), (ORPHANED, 1)]
)
def test_it_has_no_code_before_its_end_and_the_exact_one_or_1_after_it(child, launcher, end, code):
    child.changed(RUNNING)
    assert child.poll() is child.returncode is child.wait(0.01) is None
    threading.Timer(0.02, child.changed, [end]).start()
    assert child.wait(20) == child.poll() == child.returncode == code
    # what it wrote comes before what its parent writes from now on
    assert launcher.mock_calls == [call.settle_output()]


def test_who_waits_for_its_end_is_woken_by_nothing_else(child, monkeypatch):
    child.submitted(Job(id="1", name="n", run_id="r", backend="b", data={"pids": [44]}))
    woken = Mock()
    monkeypatch.setattr(child._changed, "notify_all", woken)
    child.changed(RUNNING)
    child.connected(SimpleNamespace(hello=SimpleNamespace(pid=44, host="here")))
    assert woken.mock_calls == []
    child.changed(ended(0))
    assert woken.mock_calls == [call()]


def test_each_status_is_passed_on_until_the_end_and_none_after_it(launcher):
    seen = []
    child = Child("id", "name", launcher, on_status=lambda _, status: seen.append(status))
    for status in (RUNNING, ended(0), RUNNING, ended(1)):
        child.changed(status)
    assert seen == [RUNNING, ended(0)]
    assert child.returncode == 0


def test_the_end_of_a_process_is_told_once_as_soon_as_it_is_reported(launcher):
    seen, child = [], Child("id", "name", launcher, processes=2)
    ended_0 = ProcessStatus(index=0, state=JobState.FAILED, noted=b"1")
    child.on_process_end(0, seen.append)
    child.on_process_end(1, seen.append)
    child.changed(RUNNING)
    assert seen == []
    # of which nobody knows the reason yet
    child.note_report(JobStatus(state=JobState.RUNNING, processes=(ended_0,)))
    child.note_report(JobStatus(state=JobState.RUNNING, processes=(ended_0,)))
    assert seen == [ended_0]
    child.on_process_end(0, seen.append)
    assert seen == [ended_0] * 2
    child.changed(ORPHANED)
    assert [one.noted for one in seen[2:]] == [None]


def test_signals_reach_it_while_it_runs_and_no_longer(child, launcher):
    child.terminate()
    child.kill()
    child.signal(1, 15)
    child.changed(ended(0))
    child.terminate()
    child.kill()
    child.signal(1, 15)
    assert launcher.mock_calls == [
        call.terminate(child),
        call.kill(child),
        call.signal(child, 1, 15),
    ]


class TestPid:
    @pytest.fixture
    def submitted(self, child):
        child.submitted(Job(id="1", name="n", run_id="r", backend="b"))
        return child

    def test_is_the_platforms_where_it_has_one(self, child):
        child.submitted(Job(id="1", name="n", run_id="r", backend="b", data={"pids": [44]}))
        assert child.pid == 44

    def test_comes_with_the_hello(self, submitted):
        hello = SimpleNamespace(hello=SimpleNamespace(pid=45, host="remote-host"))
        threading.Timer(0.05, submitted.connected, [hello]).start()
        assert (submitted.pid, submitted.host) == (45, "remote-host")

    def test_or_with_a_status(self, child):
        process = ProcessStatus(index=0, state=JobState.RUNNING, pid=46)
        child.changed(JobStatus(state=JobState.RUNNING, host="near", processes=(process,)))
        assert (child.pid, child.host) == (46, "near")
        assert child.process_status() is process
        assert child.process_status(1) is None

    def test_is_waited_for_no_longer_than_a_start_may_take_and_not_after_the_end(
        self, submitted, launcher
    ):
        launcher.start_timeout = 0.05
        assert submitted.pid is None
        launcher.start_timeout = 1000
        submitted.changed(failed(ReasonKind.IMAGE))
        assert submitted.pid is None


class TestSentinel:
    def test_is_readable_at_the_end_and_after_it(self, child, launcher):
        assert wait([child.sentinel], 0) == []
        late = Child("late", "name", launcher)
        for one in (child, late):
            one.changed(ended(0))
            assert wait([one.sentinel], 20) == [one.sentinel]
        late.close()

    @pytest.mark.parametrize("how", ["close", "collection"])
    def test_is_released_with_the_child(self, launcher, how):
        child = Child("id", "name", launcher)
        sentinel = child.sentinel
        if how == "close":
            child.close()
            child.close()
            child.changed(ended(0))
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
        [RUNNING, ended(0), ended(1), KILLED, failed(ReasonKind.NODE_LOST)],
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
        child.changed(KILLED)
        with pytest.raises(StartError, match="not a word"):
            child.raise_if_never_started()


def test_what_its_pickle_keeps_alive_is_let_go_once_and_at_once_where_it_has_ended(child):
    seen = []
    child.on_release(lambda: seen.append("first"))
    child.release()
    child.release()
    assert seen == ["first"]
    child.on_release(lambda: seen.append("late"))
    assert seen == ["first", "late"]


class TestLog:
    @pytest.fixture
    def child(self, launcher):
        with contextlib.closing(Child("id", "Process-1", launcher, on_status=log_end)) as child:
            yield child

    @pytest.mark.parametrize(
        "status,words",
        [
            (failed(ReasonKind.START, message="no room"), ["did not start (START: no room)"]),
            (failed(ReasonKind.OOM, code=-9, message="too big"), ["was ended (OOM): too big"]),
            (failed(ReasonKind.EVICTED, code=-15), ["was ended (EVICTED): no reason was given"]),
            (
                failed(
                    ReasonKind.TIME_LIMIT, code=-15, message="killed by SIGTERM: TIME_LIMIT: 1 h"
                ),
                ["was ended: killed by SIGTERM: TIME_LIMIT: 1 h"],
            ),
            (ended(0), []),
            (ended(3), []),
            (failed(ReasonKind.SIGNAL, code=-9), []),
        ],
    )
    def test_an_end_that_no_exit_code_explains_is_logged(self, child, caplog, status, words):
        child.changed(RUNNING)
        child.changed(status)
        assert caplog.messages == [f"fiber: Process-1 {text}" for text in words]

    def test_a_start_that_failed_is_told_by_an_error_to_who_waits_for_it(self, child, caplog):
        with ThreadPoolExecutor(1) as threads:
            threads.submit(child.wait)
            until(lambda: child.is_awaited)
            child.changed(failed(ReasonKind.START, message="no room"))
        assert not caplog.records
