"""Wait statuses become states, reasons and sentences, and those of processes the status of a job."""

import os
import signal

import pytest

from fiber._agent.supervisor.jobs import (
    JobTable,
    combine,
    ended_before_start,
    not_started,
    report_exit,
    signal_name,
)
from fiber.model import JobState, ProcessStatus, Reason, ReasonKind


@pytest.fixture
def table():
    return JobTable("here")


@pytest.fixture
def running(table):
    """A table with a job whose one process runs."""
    table.add("a", owner=None, processes=1)
    table.started("a", 0, 100)
    return table


def test_a_job_is_pending_until_a_process_is_started_and_says_what_it_waits_for(table):
    table.add("a", owner=None, processes=2, waiting="waits for a device")
    status = table.status("a")
    assert (status.state, status.message) == (JobState.PENDING, "waits for a device")
    assert status.reason == Reason(ReasonKind.UNSCHEDULABLE)

    table.started("a", 0, 100)

    status = table.status("a")
    assert (status.state, status.host, status.message) == (JobState.RUNNING, "here", "")
    assert [p.pid for p in status.processes] == [100, None]


def test_a_process_that_ends_is_reported_with_all_details(running):
    entry = running.ended(100, report_exit(7 << 8), log_tail=["last"], peak_memory=5)

    assert entry is not None and entry.id == "a"
    status = running.status("a")
    assert (status.state, status.exit_code) == (JobState.FAILED, 7)
    assert status.processes[0] == ProcessStatus(
        index=0,
        state=JobState.FAILED,
        pid=100,
        reason=Reason(ReasonKind.EXIT, 7),
        exit_code=7,
        message="ended with exit code 7",
        log_tail=("last",),
        peak_memory=5,
    )


def test_stopping_and_going_on_are_news_once(running):
    assert running.stopped(100, 19) is not None
    assert running.stopped(100, 19) is None
    status = running.status("a")
    assert (status.state, status.reason) == (JobState.SUSPENDED, Reason(ReasonKind.SIGNAL, 19))
    assert "SIGSTOP" in status.message

    assert running.continued(100) is not None
    assert running.continued(100) is None
    assert running.status("a").state is JobState.RUNNING
    assert running.status("a").reason is None


def test_nothing_follows_the_end(running):
    running.ended(100, report_exit(0))

    assert running.stopped(100, 19) is None
    assert running.ended(100, report_exit(9)) is None
    assert running.status("a").state is JobState.SUCCEEDED


def test_what_was_not_started_never_will_be(table):
    table.add("a", owner=None, processes=2, waiting="waits")
    table.started("a", 0, 100)

    table.abandoned("a", ended_before_start(9))

    first, second = table.status("a").processes
    assert first.state is JobState.RUNNING
    assert (second.state, second.exit_code) == (JobState.FAILED, -9)


def test_a_forgotten_job_leaves_nothing(running):
    running.forget("a")

    assert "a" not in running
    assert running.find(100) is None
    assert list(running) == []


def process(index, state, code=None):
    reason = None if code is None else Reason(ReasonKind.EXIT, code)
    return ProcessStatus(index=index, state=state, exit_code=code, reason=reason)


def test_a_job_fails_with_any_of_its_processes_and_has_the_first_ones_code():
    status = combine(
        [
            process(0, JobState.SUCCEEDED, 0),
            process(1, JobState.FAILED, 5),
            process(2, JobState.FAILED, 6),
        ],
        host=None,
    )

    assert status.state is JobState.FAILED
    assert status.reason == Reason(ReasonKind.EXIT, 5)
    assert status.exit_code == 0


def test_a_job_is_suspended_when_all_that_live_are():
    stopped, running = process(0, JobState.SUSPENDED), process(1, JobState.RUNNING)
    ended = process(2, JobState.SUCCEEDED, 0)

    assert combine([stopped, running], host=None).state is JobState.RUNNING
    assert combine([stopped, ended], host=None).state is JobState.SUSPENDED


MB = 1 << 20
EXIT, SIGNAL, OOM, START = ReasonKind.EXIT, ReasonKind.SIGNAL, ReasonKind.OOM, ReasonKind.START


@pytest.mark.parametrize(
    "wait_status, known, reason, message",
    [
        (0, {}, Reason(EXIT, 0), "ended"),
        (1 << 8, {}, Reason(EXIT, 1), "ended with exit code 1"),
        (137 << 8, {}, Reason(EXIT, 137), "ended with exit code 137"),
        (15, {}, Reason(SIGNAL, 15), "killed by SIGTERM"),
        (6 | 0x80, {}, Reason(SIGNAL, 6), "killed by SIGABRT, a core was dumped"),
        (9, {"requested": True}, Reason(SIGNAL, 9), "killed by SIGKILL, as asked"),
        (
            9,
            {"peak_memory": 300 * MB},
            Reason(SIGNAL, 9),
            "killed by SIGKILL, cause unknown; its largest resident size was 300 MB",
        ),
        (
            9,
            {"peak_memory": 300 * MB, "memory_limit": 400 * MB},
            Reason(SIGNAL, 9),
            "killed by SIGKILL, cause unknown; its largest resident size was 300 MB of 400 MB",
        ),
        (
            9,
            {"peak_memory": 99 * MB, "memory_limit": 100 * MB, "out_of_memory": True},
            Reason(OOM),
            "out of memory: its limit is 100 MB, its peak was 99 MB",
        ),
        # what was never started has the system's words
        (127 << 8, {"failure": "cannot run 'x'"}, Reason(START), "cannot run 'x'"),
    ],
)
def test_a_wait_status_has_a_reason_a_code_and_a_sentence(wait_status, known, reason, message):
    report = report_exit(wait_status, **known)

    assert report.state is (JobState.FAILED if wait_status else JobState.SUCCEEDED)
    assert (report.reason, report.message) == (reason, message)
    assert report.exit_code == os.waitstatus_to_exitcode(wait_status)


def test_ends_without_a_process_have_a_verdict_too():
    assert ended_before_start(15).exit_code == -15
    assert ended_before_start(9).reason == Reason(SIGNAL, 9)
    assert (not_started("no room").reason, not_started("no room").message) == (
        Reason(START),
        "no room",
    )


def test_signals_without_a_name_have_a_number():
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"
