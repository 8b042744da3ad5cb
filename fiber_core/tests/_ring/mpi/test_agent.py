"""The agent parses arguments of a remote shell and runs commands through the command socket."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys

import pytest

from commands import ran
from fiber._ring.mpi import agent
from fiber._ring.mpi.member_agent import Command, CommandSocket, set_hostname
from fiber._ring.mpi.messages import RankEnded, RankUp
from fiber._ring.mpi.ranks import FOLDER, STRAY, RankRegistry, wrapped
from supervised import until_gone
from wire_world import in_thread

PATIENCE = 30.0
PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
MEGABYTE = bytes(range(250)) * 4000


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
def socket_path(folder):
    """A command socket whose hosts are all this one, but for an unknown one called nobody."""

    def begin(host, command, call):
        if host == "nobody":
            raise LookupError(f"no member is {host}")
        argv = ["/bin/sh", "-c", command]
        env = {**os.environ, "ME": host}
        command = Command(argv, env=env, out=call.out, ended=call.ended, linger=1.0)
        command.begin()
        return command

    with contextlib.closing(CommandSocket(folder, begin)) as socket_path:
        yield socket_path.path


def start(socket_path, *words, **options):
    environ = {"PATH": os.environ["PATH"], agent.SOCKET: socket_path}
    words = [sys.executable, "-I", "-S", agent.__file__, *words]
    return subprocess.Popen(words, env=environ, **PIPES, **options)


def run(socket_path, *words, given=b""):
    process = start(socket_path, *words)
    out, err = process.communicate(given, timeout=PATIENCE)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "command, given, done",
    [
        ('echo "to $ME"; cat; echo oops >&2; exit 7', b"a\0b", (7, b"to m0\na\0b", b"oops\n")),
        # the end of standard input is passed on at once
        ("cat; echo over", b"", (0, b"over\n", b"")),
        # by a signal it has a shell's exit code
        ("kill -9 $$", b"", (137, b"", b"")),
        ("cat", MEGABYTE, (0, MEGABYTE, b"")),
    ],
    ids=["streams and code", "end of input", "signal", "a megabyte"],
)
def test_what_goes_in_and_comes_out_and_the_exit_code_are_the_commands(
    socket_path, command, given, done
):
    assert run(socket_path, "m0", command, given=given) == done


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

    until_gone(pid)


def test_an_unknown_host_is_refused_with_a_word(socket_path):
    assert run(socket_path, "nobody", "true") == (255, b"", b"fiber: no member is nobody\n")


@pytest.mark.parametrize(
    "socket_name, told", [("door", b"cannot be reached"), ("", b"within fiber mpirun")]
)
def test_without_a_run_the_error_says_why(folder, socket_name, told):
    code, _, err = run(socket_name and str(folder / socket_name), "m0", "true")

    assert code == 255
    assert told in err


def test_many_agents_are_served_at_once(socket_path):
    processes = [start(socket_path, f"m{n}", f"read x; echo $ME; exit {n}") for n in range(12)]

    for number, process in enumerate(processes):
        out, _ = process.communicate(b"go\n", timeout=PATIENCE)
        assert (process.returncode, out) == (number, b"m%d\n" % number)


def test_other_clients_of_the_socket_are_harmless(socket_path):
    for words in (b"", b"nonsense\n", b"99\nshort"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(socket_path)
            stranger.sendall(words)

    assert run(socket_path, "m0", "exit 4")[0] == 4


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


@pytest.fixture
def reports():
    return queue.SimpleQueue()


@pytest.fixture
def registry(folder, reports):
    with contextlib.closing(RankRegistry(folder, reports.put)) as registry:
        yield registry


def start_rank(*argv, variable="OMPI_COMM_WORLD_RANK", rank=0, folder=""):
    environ = {"PATH": os.environ["PATH"], variable: str(rank), FOLDER: str(folder)}
    return subprocess.Popen(wrapped(argv), env=environ, **PIPES)


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"])
def test_a_rank_waits_until_it_may_begin(registry, reports, folder, variable):
    rank = start_rank(
        "sh", "-c", 'cat; echo "$1"; exit 3', "x", "a  b", variable=variable, rank=5, folder=folder
    )
    assert reports.get(timeout=PATIENCE) == RankUp(5, rank.pid)
    assert rank.poll() is None

    registry.release(1)

    assert rank.communicate(b"in\n", timeout=PATIENCE)[0] == b"in\na  b\n"
    assert rank.returncode == 3
    assert reports.get(timeout=PATIENCE) == RankEnded(5, 3)


def test_a_program_that_is_killed_or_missing_is_reported(registry, reports, folder):
    registry.release(2)
    killed = start_rank("sh", "-c", "kill -9 $$", folder=folder)
    killed.communicate(timeout=PATIENCE)
    missing = start_rank("/no/such/program", folder=folder)
    missing.communicate(timeout=PATIENCE)

    found = [reports.get(timeout=PATIENCE) for _ in range(4)]

    assert [one.code for one in found if isinstance(one, RankEnded)] == [137, 127]
    assert (killed.returncode, missing.returncode) == (137, 127)


def test_a_rank_on_no_member_begins_nothing(folder):
    stray = start_rank("touch", f"{folder}/began", rank=2)

    assert b"rank 2 was started on" in stray.communicate(timeout=PATIENCE)[1]
    assert stray.returncode == STRAY
    assert not (folder / "began").exists()


def test_invalid_reports_are_ignored(registry, reports, folder):
    (folder / "up").write_text("nonsense\nup x y\n\nup 1\nup 7 8\n")

    assert reports.get(timeout=PATIENCE) == RankUp(7, 8)


def test_a_thread_and_its_programs_have_the_name_or_nothing_has_changed():
    before = socket.gethostname()

    def look():
        return set_hostname("member-7"), ran(["uname", "-n"]).stdout.strip()

    found = in_thread(look)()

    assert found == ((True, "member-7") if found[0] else (False, before))
    assert socket.gethostname() == before
