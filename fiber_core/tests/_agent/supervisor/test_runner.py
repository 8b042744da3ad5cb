"""Jobs are started, watched and ended: by real processes."""

import os
import re
import signal
import sys

import pytest

from fiber.exceptions import SubmitError
from fiber.model import JobState, Reason, ReasonKind
from supervised import until_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists children")


def test_exit_codes_are_exact(supervised):
    for code in (0, 1, 7, 255):
        status = supervised.run("exit_with", bytes([code]))
        assert (status.exit_code, status.reason) == (code, Reason(ReasonKind.EXIT, code))
        assert 1 << 20 < status.processes[0].peak_memory < 1 << 30


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_signals_are_exact(supervised, signum):
    status = supervised.run("die_by", bytes([signum]))

    assert status.state is JobState.FAILED
    assert (status.exit_code, status.reason) == (-signum, Reason(ReasonKind.SIGNAL, signum))


def test_a_kill_by_another_process_has_an_unknown_cause(supervised):
    accepted = supervised.ready("wait")

    os.kill(accepted.pids[0], signal.SIGKILL)

    message = supervised.end(accepted).message
    assert message.startswith("killed by SIGKILL, cause unknown; its largest resident size was ")


def test_an_exception_is_exit_code_one_with_its_traceback_and_words_are_too(capfd, make):
    supervised = make()
    status = supervised.run("fail")

    assert status.exit_code == 1
    error = capfd.readouterr().err
    assert error.startswith("Traceback")
    assert "what went wrong" in error
    # the frames of the supervisor are no affair of the reader
    assert "fiber/_agent" not in error
    assert status.processes[0].log_tail[-1] == "ValueError: what went wrong"
    status = supervised.run("leave")
    assert (status.exit_code, status.processes[0].log_tail) == (1, ("said at the end",))


def test_each_process_has_its_index_and_ends_for_itself(supervised):
    status = supervised.run("exit_with", bytes([3, 0, 5]), processes=3)

    assert [p.exit_code for p in status.processes] == [3, 0, 5]
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert len({p.pid for p in status.processes}) == 3


def test_stopping_and_going_on_are_noticed(supervised):
    accepted = supervised.ready("wait")

    supervised.client.signal(accepted.job_id, 0, signal.SIGSTOP)
    stopped = supervised.until(accepted, lambda s: s.state is JobState.SUSPENDED)
    assert stopped.reason == Reason(ReasonKind.SIGNAL, signal.SIGSTOP)
    seen = len(supervised.statuses[accepted.job_id])
    supervised.client.signal(accepted.job_id, 0, signal.SIGCONT)

    supervised.until(accepted, lambda s: len(supervised.statuses[accepted.job_id]) > seen)
    assert supervised.statuses[accepted.job_id][-1].state is JobState.RUNNING


def test_a_signal_right_after_the_start_is_not_swallowed(supervised):
    for _ in range(20):
        accepted = supervised.submit("wait")
        supervised.client.signal(accepted.job_id, 0, signal.SIGTERM)
        assert supervised.end(accepted).exit_code == -signal.SIGTERM


def test_one_process_is_signalled_alone(supervised):
    accepted = supervised.ready("wait", processes=2)

    supervised.client.signal(accepted.job_id, 1, signal.SIGINT)

    status = supervised.until(accepted, lambda s: s.processes[1].state.is_terminal)
    assert status.processes[1].exit_code == 1
    assert status.processes[1].log_tail[-1] == "KeyboardInterrupt"
    assert status.processes[0].state is JobState.RUNNING


def test_terminate_asks_first(supervised):
    accepted = supervised.ready("wait_for_signal")

    supervised.client.terminate(accepted.job_id, 100.0)

    assert supervised.end(accepted).exit_code == 9
    assert "asked" in supervised.log(accepted)


@pytest.mark.parametrize("graces", [(0.05,), (1000.0, 0.01, 1000.0)], ids=["one", "the shortest"])
def test_terminate_kills_what_is_left_after_its_grace(supervised, graces):
    accepted = supervised.ready("ignore_signals", processes=2)

    for grace in graces:
        supervised.client.terminate(accepted.job_id, grace)

    status = supervised.end(accepted)
    assert [p.exit_code for p in status.processes] == [-9, -9]
    assert status.message == "killed by SIGKILL, as asked"


@linux
@pytest.mark.parametrize("family", ["with_grandchild", "with_launcher"])
@pytest.mark.parametrize("end", ["kill", "terminate", "SIGKILL by somebody else", "exit"])
def test_what_a_process_has_started_ends_with_it(supervised, family, end):
    accepted = supervised.submit(family, b"end" if end == "exit" else b"")
    pids = [int(word) for word in supervised.lines(accepted, 1)[0].split()]

    if end == "kill":
        supervised.client.kill(accepted.job_id)
    elif end == "terminate":
        supervised.client.terminate(accepted.job_id, 100.0)
    elif end != "exit":
        os.kill(accepted.pids[0], signal.SIGKILL)

    codes = {"exit": 0, "terminate": -signal.SIGTERM}
    assert supervised.end(accepted).exit_code == codes.get(end, -signal.SIGKILL)
    until_gone(*pids)


def test_killing_twice_and_after_the_end_is_no_error(supervised):
    accepted = supervised.ready("wait")
    for _ in range(2):
        supervised.client.kill(accepted.job_id)
    supervised.end(accepted)

    supervised.client.kill(accepted.job_id)
    supervised.client.terminate(accepted.job_id, 1.0)
    supervised.client.signal(accepted.job_id, 0, signal.SIGTERM)

    assert [s.state for s in supervised.statuses[accepted.job_id]] == [
        JobState.RUNNING,
        JobState.FAILED,
    ]


def test_a_program_runs_with_its_words_intact(supervised):
    words = ["a b", "c'd\"e", "*", "$HOME", ""]
    code = "import sys; print(sys.argv[1:])"

    accepted = supervised.submit([sys.executable, "-c", code, *words])

    assert supervised.end(accepted).exit_code == 0
    assert supervised.log(accepted) == f"{words}\n"


def test_a_program_finds_its_private_bytes_on_a_descriptor(supervised):
    script = 'cat <&"${FIBER_BOOTSTRAP#fd:}"'

    accepted = supervised.submit(["bash", "-c", script], private=b"x" * 200_000)

    assert supervised.end(accepted).exit_code == 0
    assert len(supervised.log(accepted)) == 200_000


def test_a_program_that_does_not_exist_is_refused_with_the_systems_words(supervised):
    with pytest.raises(SubmitError, match="cannot run 'no-such-program': No such file"):
        supervised.submit(["no-such-program"])
    with pytest.raises(SubmitError, match="Permission denied"):
        supervised.submit([os.fspath(supervised.folder)])


def test_a_working_directory_that_does_not_exist_is_an_error(supervised):
    with pytest.raises(SubmitError, match="cannot change to the working directory"):
        supervised.submit(["true"], cwd="/no/such/folder")


@pytest.mark.parametrize(
    "entry, cwd, words",
    [
        (
            "exit_with",
            "/no/such/folder",
            "cannot change to the working directory.*'/no/such/folder'",
        ),
        ("no_such_function", None, "no_such_function"),
    ],
)
def test_an_entry_that_cannot_be_started_is_an_error(supervised, entry, cwd, words):
    status = supervised.run(entry, b"\0", cwd=cwd)

    assert status.reason == Reason(ReasonKind.START)
    assert re.search(words, status.message)


def test_no_status_of_a_refused_job_is_reported(supervised):
    with pytest.raises(SubmitError):
        supervised.submit(["no-such-program"], processes=3)

    assert supervised.client.query() == {}
    assert supervised.statuses == {}


def test_all_processes_of_a_program_are_needed(supervised):
    status = supervised.run(["sh", "-c", "exit 4"], processes=3)

    assert [p.exit_code for p in status.processes] == [4, 4, 4]
