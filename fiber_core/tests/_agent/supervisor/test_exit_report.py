"""Wait statuses become states, reasons and sentences."""

import os
import signal

import pytest

from fiber._agent.supervisor.jobs import ended_early, judge, not_started, signal_name
from fiber.model import JobState, Reason, ReasonKind

MB = 1 << 20


def exited(code):
    return code << 8


def test_zero_is_success():
    verdict = judge(exited(0))

    assert verdict.state is JobState.SUCCEEDED
    assert (verdict.reason, verdict.exit_code) == (Reason(ReasonKind.EXIT, 0), 0)


@pytest.mark.parametrize("code", [1, 7, 137, 255])
def test_any_other_code_is_failure(code):
    verdict = judge(exited(code))

    assert verdict.state is JobState.FAILED
    assert (verdict.reason, verdict.exit_code) == (Reason(ReasonKind.EXIT, code), code)
    assert verdict.message == f"ended with exit code {code}"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_is_its_negative_number(signum):
    verdict = judge(int(signum))

    assert verdict.state is JobState.FAILED
    assert (verdict.reason, verdict.exit_code) == (Reason(ReasonKind.SIGNAL, signum), -signum)
    assert signum.name in verdict.message


def test_a_core_is_mentioned():
    assert "a core was dumped" in judge(signal.SIGABRT | 0x80).message


def test_sigkill_by_nobody_we_know_tells_the_memory_and_claims_nothing():
    verdict = judge(9, peak_memory=300 * MB, memory_limit=400 * MB)

    assert verdict.reason == Reason(ReasonKind.SIGNAL, 9)
    assert verdict.message == (
        "killed by SIGKILL, cause unknown; its largest resident size was 300 MB of 400 MB"
    )
    assert "of" not in judge(9, peak_memory=300 * MB).message.partition("size")[2]


def test_sigkill_as_asked_says_so():
    assert judge(9, asked=True).message == "killed by SIGKILL, as asked"


def test_out_of_memory_is_said_with_proof_only():
    verdict = judge(9, peak_memory=99 * MB, memory_limit=100 * MB, out_of_memory=True)

    assert verdict.reason == Reason(ReasonKind.OOM)
    assert verdict.exit_code == -9
    assert verdict.message == "out of memory: its limit is 100 MB, its peak was 99 MB"


def test_what_was_never_started_has_the_systems_words():
    verdict = judge(exited(127), failure="cannot run 'x': No such file or directory")

    assert verdict.reason == Reason(ReasonKind.START)
    assert verdict.message == "cannot run 'x': No such file or directory"


def test_ends_without_a_process_have_a_verdict_too():
    assert ended_early(15).exit_code == -15
    assert ended_early(9).reason == Reason(ReasonKind.SIGNAL, 9)
    assert not_started("no room").reason == Reason(ReasonKind.START)
    assert not_started("no room").message == "no room"


def test_signals_without_a_name_have_a_number():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_wait_statuses_are_those_of_the_system():
    pid = os.fork()
    if pid == 0:
        os._exit(77)

    assert judge(os.waitpid(pid, 0)[1]).exit_code == 77
