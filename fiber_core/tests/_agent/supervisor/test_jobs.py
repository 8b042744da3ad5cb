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


def test_a_job_is_pending_until_a_process_is_started(table):
    table.add("a", owner=None, processes=2)
    assert table.status("a").state is JobState.PENDING

    table.started("a", 0, 100)

    status = table.status("a")
    assert (status.state, status.host) == (JobState.RUNNING, "here")
    assert [p.pid for p in status.processes] == [100, None]


def test_a_waiting_job_has_a_reason(table):
    table.add("a", owner=None, processes=1, waiting="waits for a device")

    status = table.status("a")
    assert (status.state, status.message) == (JobState.PENDING, "waits for a device")
    assert status.reason == Reason(ReasonKind.UNSCHEDULABLE)

    table.started("a", 0, 100)
    assert table.status("a").message == ""


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


def test_foreign_pids_have_no_job(table):
    assert table.find(4711) is None
    assert table.ended(4711, report_exit(0)) is None
    assert table.get("nobody") is None


def test_a_process_is_found_by_its_id_until_it_ends(table):
    table.add("a", owner=None, processes=2)
    table.started("a", 1, 100)

    entry, index = table.find(100)
    assert (entry.id, index) == ("a", 1)
    assert entry.pids == (100,)
    table.ended(100, report_exit(0))
    assert table.find(100) is None
    assert entry.pids == ()


def test_jobs_belong_to_their_submitter(table):
    table.add("a", owner=None, processes=1)
    table.add("b", owner=("a", 0), processes=1)
    table.add("c", owner=("a", 0), processes=1)

    assert [job.id for job in table.owned_by(("a", 0))] == ["b", "c"]
    assert [job.id for job in table.owned_by(None)] == ["a"]
    assert len(table) == 3


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


def exited(code):
    return code << 8


@pytest.mark.parametrize("code", [0, 1, 7, 137, 255])
def test_zero_is_success_and_any_other_code_is_failure(code):
    report = report_exit(exited(code))

    assert report.state is (JobState.FAILED if code else JobState.SUCCEEDED)
    assert (report.reason, report.exit_code) == (Reason(ReasonKind.EXIT, code), code)
    assert report.message == (f"ended with exit code {code}" if code else "ended")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_is_its_negative_number(signum):
    report = report_exit(int(signum))

    assert report.state is JobState.FAILED
    assert (report.reason, report.exit_code) == (Reason(ReasonKind.SIGNAL, signum), -signum)
    assert signum.name in report.message


def test_a_core_is_mentioned():
    assert "a core was dumped" in report_exit(signal.SIGABRT | 0x80).message


def test_sigkill_by_an_unknown_sender_reports_the_memory_and_no_cause():
    report = report_exit(9, peak_memory=300 * MB, memory_limit=400 * MB)

    assert report.reason == Reason(ReasonKind.SIGNAL, 9)
    assert report.message == (
        "killed by SIGKILL, cause unknown; its largest resident size was 300 MB of 400 MB"
    )
    assert "of" not in report_exit(9, peak_memory=300 * MB).message.partition("size")[2]


def test_a_requested_sigkill_is_reported_as_such():
    assert report_exit(9, requested=True).message == "killed by SIGKILL, as asked"


def test_out_of_memory_is_reported_with_proof_only():
    report = report_exit(9, peak_memory=99 * MB, memory_limit=100 * MB, out_of_memory=True)

    assert report.reason == Reason(ReasonKind.OOM)
    assert report.exit_code == -9
    assert report.message == "out of memory: its limit is 100 MB, its peak was 99 MB"


def test_what_was_never_started_has_the_systems_words():
    report = report_exit(exited(127), failure="cannot run 'x': No such file or directory")

    assert report.reason == Reason(ReasonKind.START)
    assert report.message == "cannot run 'x': No such file or directory"


def test_ends_without_a_process_have_a_verdict_too():
    assert ended_before_start(15).exit_code == -15
    assert ended_before_start(9).reason == Reason(ReasonKind.SIGNAL, 9)
    assert not_started("no room").reason == Reason(ReasonKind.START)
    assert not_started("no room").message == "no room"


def test_signals_without_a_name_have_a_number():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_wait_statuses_are_those_of_the_system():
    _, status = os.waitpid(os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", "exit 77"), 0)
    assert report_exit(status).exit_code == 77
