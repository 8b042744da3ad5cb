"""Wait statuses become states, reasons and sentences."""

import os
import signal

import pytest

from fiber._agent.supervisor.jobs import ended_before_start, not_started, report_exit, signal_name
from fiber.model import JobState, Reason, ReasonKind

MB = 1 << 20


def exited(code):
    return code << 8


def test_zero_is_success():
    report = report_exit(exited(0))

    assert report.state is JobState.SUCCEEDED
    assert (report.reason, report.exit_code) == (Reason(ReasonKind.EXIT, 0), 0)


@pytest.mark.parametrize("code", [1, 7, 137, 255])
def test_any_other_code_is_failure(code):
    report = report_exit(exited(code))

    assert report.state is JobState.FAILED
    assert (report.reason, report.exit_code) == (Reason(ReasonKind.EXIT, code), code)
    assert report.message == f"ended with exit code {code}"


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
    pid = os.fork()
    if pid == 0:
        os._exit(77)

    assert report_exit(os.waitpid(pid, 0)[1]).exit_code == 77
