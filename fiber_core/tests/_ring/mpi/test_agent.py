"""The agent parses arguments of a remote shell and runs commands through the command socket."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fiber._ring.mpi import agent
from fiber._ring.mpi.command_socket import CommandSocket
from fiber._ring.mpi.streams import Command

PATIENCE = 30.0


@pytest.mark.parametrize(
    "words, host, command",
    [
        (["member-0", "true"], "member-0", "true"),
        (["user@member-0", "-p", "22", "a", " orted"], "member-0", "a  orted"),
        (["-x", "-o", "A=b", "-l", "me", "-q", "h", "ls", "-l"], "h", "ls -l"),
        (["-oA=b", "-p22", "-l", "me", "--", "h", "ls"], "h", "ls"),
        (["h", '"env"', "'a b'", "$HOME;", "x"], "h", "\"env\" 'a b' $HOME; x"),
    ],
)
def test_words_are_read_as_a_remote_shell_reads_them(words, host, command):
    assert agent.parse(words) == (host, command)


@pytest.mark.parametrize("words", [[], ["-x"], ["-l", "me"], ["h"], ["h", " "], ["me@", "ls"]])
def test_words_without_a_host_or_a_command_are_an_error(words):
    with pytest.raises(ValueError, match="named"):
        agent.parse(words)


@pytest.fixture
def folder():
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fm-") as name:
        yield Path(name)


@pytest.fixture
def socket_path(folder):
    """A command socket whose hosts are all this one, but for an unknown one called nobody."""

    def begin(host, command, call):
        if host == "nobody":
            msg = f"no member is {host}"
            raise LookupError(msg)
        argv = ["/bin/sh", "-c", command]
        env = {**os.environ, "ME": host}
        command = Command(argv, env=env, out=call.out, ended=call.ended, linger=1.0)
        command.begin()
        return command

    socket_path = CommandSocket(folder, begin)
    yield socket_path.path
    socket_path.close()


def start(socket_path, *words, **options):
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environ = {"PATH": os.environ["PATH"], agent.SOCKET: socket_path}
    words = [sys.executable, "-I", "-S", agent.__file__, *words]
    return subprocess.Popen(words, env=environ, **{**streams, **options})


def run(socket_path, *words, given=b""):
    process = start(socket_path, *words)
    out, err = process.communicate(given, timeout=PATIENCE)
    return process.returncode, out, err


def test_streams_and_the_exit_code_are_the_commands(socket_path):
    done = run(socket_path, "m0", 'echo "to $ME";', "cat; echo oops >&2; exit 7", given=b"a\0b")

    assert done == (7, b"to m0\na\0b", b"oops\n")


def test_the_end_of_standard_input_is_passed_on_at_once(socket_path):
    assert run(socket_path, "m0", "cat; echo over") == (0, b"over\n", b"")


def test_a_command_ended_by_a_signal_has_a_shells_exit_code(socket_path):
    assert run(socket_path, "m0", "kill -9 $$")[0] == 137


def test_a_megabyte_comes_complete_both_ways(socket_path):
    data = os.urandom(1_000_000)

    assert run(socket_path, "m0", "cat", given=data) == (0, data, b"")


def test_a_signal_goes_to_the_command(socket_path):
    command = 'trap "echo heard; exit 5" TERM; echo ready; while :; do sleep 0.05; done'
    process = start(socket_path, "m0", command)
    assert process.stdout.readline() == b"ready\n"

    process.terminate()

    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, b"heard\n")


def test_the_command_of_a_killed_agent_is_killed(socket_path, folder):
    process = start(socket_path, "m0", f"echo $$ > {folder}/pid; echo ready; exec sleep 1000")
    assert process.stdout.readline() == b"ready\n"
    pid = int((folder / "pid").read_text())

    process.kill()
    process.communicate(timeout=PATIENCE)

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("it is still there")


def test_an_unknown_host_is_refused_with_a_word(socket_path):
    assert run(socket_path, "nobody", "true") == (255, b"", b"fiber: no member is nobody\n")


def test_a_run_that_is_over_is_an_error(folder):
    code, _, err = run(str(folder / "door"), "m0", "true")

    assert code == 255
    assert b"cannot be reached" in err


def test_without_a_launcher_the_error_says_how_it_is_started(folder):
    code, _, err = run("", "m0", "true")

    assert code == 255
    assert b"within fiber mpirun" in err


def test_many_agents_are_served_at_once(socket_path):
    processes = [start(socket_path, f"m{n}", f"read x; echo $ME; exit {n}") for n in range(12)]

    for number, process in enumerate(processes):
        out, _ = process.communicate(b"go\n", timeout=PATIENCE)
        assert (process.returncode, out) == (number, b"m%d\n" % number)


def test_other_clients_of_the_socket_are_harmless(socket_path):
    import socket

    for words in (b"", b"nonsense\n", b"99\nshort"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(socket_path)
            stranger.sendall(words)

    assert run(socket_path, "m0", "exit 4")[0] == 4


def test_the_socket_is_its_users_alone(socket_path):
    assert Path(socket_path).stat().st_mode & 0o777 == 0o600


def test_no_thread_is_left_of_a_call(socket_path):
    before = threading.active_count()

    assert run(socket_path, "m0", "true")[0] == 0

    deadline = time.monotonic() + PATIENCE
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_signals_that_are_ignored_stay_so(socket_path):
    process = start(
        socket_path,
        "m0",
        "echo ready; read x; exit 3",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGHUP)
    process.communicate(b"go\n", timeout=PATIENCE)

    assert process.returncode == 3
