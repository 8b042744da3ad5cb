"""Jobs are started, watched and ended: by real processes."""

import os
import signal
import sys

import pytest

from fiber.exceptions import SubmitError
from fiber.model import JobState, Reason, ReasonKind
from supervised import is_alive, until_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists children")


def test_exit_codes_are_exact(supervised):
    for code in (0, 1, 7, 255):
        status = supervised.run("exit_with", bytes([code]))
        assert (status.exit_code, status.reason) == (code, Reason(ReasonKind.EXIT, code))


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


def test_an_exception_is_exit_code_one_with_its_traceback(capfd, make):
    status = make().run("fail")

    assert status.exit_code == 1
    error = capfd.readouterr().err
    assert error.startswith("Traceback")
    assert "what went wrong" in error
    # the frames of the supervisor are no affair of the reader
    assert "fiber/_agent" not in error
    assert status.processes[0].log_tail[-1] == "ValueError: what went wrong"


def test_exit_with_words_is_exit_code_one_and_the_words(supervised):
    status = supervised.run("leave")

    assert status.exit_code == 1
    assert status.processes[0].log_tail == ("said at the end",)


def test_the_peak_of_memory_is_reported(supervised):
    status = supervised.run("exit_with", b"\0")

    assert 1 << 20 < status.processes[0].peak_memory < 1 << 30


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


def test_terminate_kills_what_is_left_after_its_grace(supervised):
    accepted = supervised.ready("ignore_signals", processes=2)

    supervised.client.terminate(accepted.job_id, 0.05)

    status = supervised.end(accepted)
    assert [p.exit_code for p in status.processes] == [-9, -9]
    assert status.message == "killed by SIGKILL, as asked"


def test_a_shorter_grace_counts(supervised):
    accepted = supervised.ready("ignore_signals")

    supervised.client.terminate(accepted.job_id, 1000.0)
    supervised.client.terminate(accepted.job_id, 0.01)
    supervised.client.terminate(accepted.job_id, 1000.0)

    assert supervised.end(accepted).exit_code == -9


def test_killing_reaches_grandchildren_that_ignore_sigterm(supervised):
    accepted = supervised.submit("with_grandchild")
    grandchild = int(supervised.lines(accepted, 1)[0])
    assert is_alive(grandchild)

    supervised.client.kill(accepted.job_id)

    assert supervised.end(accepted).exit_code == -9
    until_gone(grandchild)


def test_terminating_reaches_grandchildren_that_ignore_sigterm(supervised):
    accepted = supervised.submit("with_grandchild")
    grandchild = int(supervised.lines(accepted, 1)[0])

    supervised.client.terminate(accepted.job_id, 100.0)

    assert supervised.end(accepted).exit_code == -signal.SIGTERM
    until_gone(grandchild)


def test_what_a_process_leaves_in_its_group_ends_with_it(supervised):
    accepted = supervised.submit("with_grandchild", b"end")

    assert supervised.end(accepted).exit_code == 0
    until_gone(int(supervised.lines(accepted, 1)[0]))


@linux
@pytest.mark.parametrize("end", ["kill", "SIGKILL by somebody else", "exit"])
def test_what_a_launcher_started_in_other_groups_ends_with_its_group(supervised, end):
    accepted = supervised.submit("with_launcher", b"end" if end == "exit" else b"")
    pids = [int(word) for word in supervised.lines(accepted, 1)[0].split()]

    if end == "kill":
        supervised.client.kill(accepted.job_id)
    elif end != "exit":
        os.kill(accepted.pids[0], signal.SIGKILL)

    assert supervised.end(accepted).exit_code == (0 if end == "exit" else -9)
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

    status = supervised.run("exit_with", b"\0", cwd="/no/such/folder")

    assert status.reason == Reason(ReasonKind.START)
    assert "cannot change to the working directory" in status.message
    assert "/no/such/folder" in status.message


def test_an_entry_that_cannot_be_imported_is_an_error(supervised):
    status = supervised.run("no_such_function")

    assert status.reason == Reason(ReasonKind.START)
    assert "no_such_function" in status.message


def test_no_status_of_a_refused_job_is_reported(supervised):
    with pytest.raises(SubmitError):
        supervised.submit(["no-such-program"], processes=3)

    assert supervised.client.query() == {}
    assert supervised.statuses == {}


def test_all_processes_of_a_program_are_needed(supervised):
    accepted = supervised.submit(["sh", "-c", "exit 4"], processes=3)

    assert [p.exit_code for p in supervised.end(accepted).processes] == [4, 4, 4]
