"""What runs on hosts: its folder, its ports, its messages, a job's log, and the runs that it finds."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import ran
from fiber._agent.supervisor.journal import JournaledJob
from fiber.exceptions import WireError
from fiber.model import JobSpec, JobState, ProcessStatus, Reason, ReasonKind
from fiber_ssh.exec_channel import loader_source
from fiber_ssh.remote.kernel import bound_port
from fiber_ssh.remote.runs import Run, load_runs, offset_of_tail, pieces, read_piece
from fiber_ssh.remote.wire import Data, decoder, pack
from making import making

_TAKE = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
host, port = sys.argv[1], int(sys.argv[2])
taker = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    taker.setsockopt(socket.SOL_SOCKET, option, 1)
taker.bind((host, port))
taker.listen()
print("taken")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_no_other_user_can_take_the_port_of_a_job_that_does_not_listen_yet(host):
    bound, port = bound_port()
    words = [sys.executable, "-c", _TAKE, host, str(port)]
    other = ran(words)
    os.close(bound)

    assert other.stdout == ""
    assert "Address already in use" in other.stderr


class TestFolder:
    """Hosts of one name that share a home have folders of their own: an agent ends what another began."""

    @pytest.fixture
    def own(self, tmp_path):
        """The folder that a machine gets, by its id."""
        found = {}
        source = loader_source()
        assert source.endswith("\n\n_main()\n")
        exec(source.removesuffix("_main()\n"), found)
        text = found["_text"]

        def own(machine):
            found["_text"] = lambda path: machine if path == "/etc/machine-id" else text(path)
            return found["_own"](str(tmp_path / "worker"))

        return own

    def test_each_machine_keeps_its_folder_and_is_told_by_its_boot_without_an_id(
        self, own, tmp_path
    ):
        first, second = "a" * 32, "b" * 32

        for _ in range(2):
            assert own(first) == str(tmp_path / "worker")
            assert own(second) == str(tmp_path / "worker-bbbbbbbb")
        assert own("").startswith(str(tmp_path / "worker-"))

        assert sorted(path.name for path in (tmp_path / "worker").iterdir()) == ["machine"]
        # where both are another's, nothing is kept
        with pytest.raises(OSError, match="belongs to other hosts of this name"):
            own("b" * 8 + "c" * 24)


_AGENT = """
import sys
from fiber_ssh.remote import agent, main
agent.LEASE, agent._RETURN = float(sys.argv.pop()), float(sys.argv.pop())
main.main()
"""


class TestAgent:
    """An agent's process ends by itself once nobody needs it."""

    @pytest.fixture
    def agent(self, tmp_path, monkeypatch):
        """Starts one that waits so many seconds for who has started it or has gone, or is silent."""
        monkeypatch.chdir(tmp_path)

        def start(gone, silent=3600):
            words = [sys.executable, "-c", _AGENT, "agent", str(tmp_path), str(gone), str(silent)]
            process = subprocess.Popen(words, stdout=subprocess.PIPE)
            # it lets go of its output once it listens
            process.stdout.read()
            return process

        def end(process):
            process.kill()
            process.communicate()

        with making(start, end) as start:
            yield start

    @pytest.fixture
    def connected(self):
        """Connects, and sends messages."""

        def connect(*messages):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(60)
            sock.connect("agent.sock")
            assert sock.recv(1) == b"+"
            sock.sendall(b"".join(map(pack, messages)))
            return sock

        with making(connect, socket.socket.close) as connect:
            yield connect

    def test_where_who_started_it_was_killed_before_it_connected(self, agent, tmp_path):
        assert agent(0.1).wait(60) == 0
        assert not (tmp_path / "agent.sock").exists()

    def test_where_a_run_is_cleaned_up_that_its_owner_has_released(self, agent, connected):
        process = agent(3600)
        owner = connected(
            {"id": 0, "op": "join", "run": "0badcafe", "lease": 3600},
            {"id": 1, "op": "release", "run": "0badcafe"},
            {"id": 2, "op": "cleanup", "run": "0badcafe"},
        )
        decoding, answered = decoder(), {}
        while len(answered) < 3:
            decoding.feed(owner.recv(4096))
            answered.update((m["id"], m["ok"]) for m in decoding.messages() if "id" in m)
        assert answered == {0: {"jobs": []}, 1: {}, 2: {}}
        owner.close()
        assert process.wait(60) == 0

    @pytest.mark.parametrize("run", [None, "0badcafe"], ids=["looks on", "has released its run"])
    def test_where_whoever_is_connected_and(self, run, agent, connected):
        """It answers no heartbeat, as behind a link that is cut: nobody is told of its end."""
        process = agent(3600, silent=0.5)
        join = {"id": 0, "op": "join", "run": run, "lease": 3600}
        silent = connected(join, {"id": 1, "op": "release", "run": run})
        while silent.recv(4096):
            pass
        assert process.wait(60) == 0


class TestRuns:
    """What an agent that comes after another one makes of the runs that it left."""

    @pytest.fixture
    def left(self, tmp_path):
        """A run whose agent was killed: one job ran, one had ended, one was forgotten."""
        run = Run(str(tmp_path), "0badcafe")
        for name in ("ran", "ended", "forgotten"):
            spec = JobSpec(run_id=run.id, name=name, argv=("x",), detached=name == "ended")
            run.journal.submitted(name, spec, None, "alpha")
            run.journal.started(name, 0, os.getpid())
        code = Reason(ReasonKind.EXIT, 3)
        end = ProcessStatus(index=0, state=JobState.FAILED, reason=code, exit_code=3)
        run.journal.ended("ended", end)
        for name in ("ran", "ended"):
            Path(run.folder_of(name)).mkdir()
        yield run
        run.remove()

    @pytest.fixture
    def found(self, left, tmp_path):
        """What the next agent finds."""
        with making(lambda: next(load_runs(str(tmp_path))), Run.remove) as found:
            yield found

    def test_its_owner_has_as_long_as_it_said_to_be_heard_of_again(self, left, found):
        left.keep_lease(2.5)
        assert found().lease == 2.5

    def test_its_jobs_have_ended_as_they_did_or_with_their_agent_and_stay_so(self, found):
        for run in (found(), found()):
            ends = {}
            for job in run.jobs.values():
                found_by_others = JournaledJob.from_events(
                    json.loads(json.dumps(job.record))["events"]
                )
                assert found_by_others.processes == job.known.processes
                ends[job.id] = job.process.reason, found_by_others.detached
            assert ends == {
                "ran": (Reason(ReasonKind.NODE_LOST), False),
                "ended": (Reason(ReasonKind.EXIT, 3), True),
            }

    @pytest.mark.parametrize("said", [None, "", "nonsense"])
    def test_without_a_word_of_its_owner_it_has_the_usual_lease(self, left, found, said):
        if said is not None:
            Path(left.directory, "lease").write_text(said)
        assert found().lease == 30.0


def plain(found):
    if isinstance(found, Data):
        return found.number, found.stream, found.content, found.offset
    return found


@given(st.lists(st.integers(1, 40), min_size=1))
def test_messages_and_output_arrive_however_they_are_cut(cuts):
    stream = pack({"op": "x", "text": "ünï"}) + pack(Data(3, 1, b"a\0b", 17)) + pack({"id": 1})
    decoding, found, start = decoder(), [], 0
    for size in [*cuts, len(stream)]:
        decoding.feed(stream[start : start + size])
        found += [plain(one) for one in decoding.messages()]
        start += size

    assert found == [{"op": "x", "text": "ünï"}, (3, 1, b"a\0b", 17), {"id": 1}]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!IB", 1 << 31, 0),
        struct.pack("!IB", 2, 9) + b"{}",
        struct.pack("!IB", 2, 1) + b"xx",
        struct.pack("!IB", 2, 0) + b"[]",
        struct.pack("!IB", 2, 0) + b"{]",
    ],
)
def test_what_makes_no_sense_is_an_error(data):
    decoding = decoder()
    decoding.feed(data)
    with pytest.raises(WireError):
        list(decoding.messages())


def write(path, *output):
    with open(path, "ab") as file:
        for stream, data in output:
            file.writelines(pieces(stream, data))


def read(path, offset=0, skip=0):
    found = []
    with open(path, "rb") as file:
        file.seek(offset)
        while (piece := read_piece(file)) is not None:
            found.append((piece[0], piece[1][skip:]))
            skip = 0
    return found


class TestLog:
    """A job's output on disk: complete, in order, from any place on."""

    @pytest.fixture
    def path(self, tmp_path):
        return str(tmp_path / "log")

    def test_reading_goes_on_where_it_stopped_while_the_file_grows(self, path):
        write(path, (0, b"one\n"), (1, b"err"))
        with open(path, "rb") as file:
            assert [read_piece(file) for _ in range(3)] == [(0, b"one\n"), (1, b"err"), None]

            write(path, (1, b"two"))

            assert read_piece(file) == (1, b"two")
            assert read(path, file.tell()) == []

    def test_half_a_piece_is_none_yet(self, path):
        write(path, (0, b"whole"), (0, b"half"))
        with open(path, "r+b") as file:
            file.truncate(file.seek(0, 2) - 1)

        assert read(path) == [(0, b"whole")]

    @pytest.mark.parametrize(
        "count, tail",
        [(0, b""), (1, b"e e"), (2, b"d\ne e"), (4, b"b\nc\nd\ne e"), (9, b"a\nb\nc\nd\ne e")],
    )
    def test_the_tail_begins_where_the_last_lines_do(self, path, count, tail):
        # also a line of several pieces is one
        write(path, (0, b"a\nb\n"), (1, b"c\n"), (0, b"d\ne "), (0, b"e"))

        assert b"".join(part for _, part in read(path, *offset_of_tail(path, count))) == tail
