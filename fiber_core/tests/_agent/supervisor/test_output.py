"""Output of processes: lines, relayed to terminal, log and memory, and a terminal that may not read."""

import os
import pty
import resource
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.supervisor.output import (
    LineBuffer,
    LinePrefix,
    LineTail,
    LogFile,
    OutputRelay,
    Sink,
)

#: more than any pipe or terminal holds
PLENTY = b"".join(b"%08d\n" % i for i in range(400_000))
needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
PIECES = st.lists(st.binary(max_size=12) | st.sampled_from([b"a\n", b"\n", b"b", b"\r", b"c\nd"]))


def test_a_line_without_end_passes_in_pieces():
    lines = LineBuffer(longest=10)

    assert [lines.feed(b"x" * 10), lines.feed(b"x")] == [b"", b"x" * 11]


@given(PIECES)
def test_no_byte_is_lost_or_changed(pieces):
    lines = LineBuffer(longest=20)
    out = b"".join(map(lines.feed, pieces)) + lines.flush()

    assert out == b"".join(pieces)


@pytest.mark.parametrize(
    "pieces,out",
    [
        ([b"a\nb\n"], b"[x] a\n[x] b\n"),
        ([b"a", b"b\n", b"c"], b"[x] ab\n[x] c"),
        ([b"\n", b"\n"], b"[x] \n[x] \n"),
        ([b"10%\r", b"20%\r"], b"[x] 10%\r20%\r"),
        ([b""], b""),
    ],
)
def test_each_line_gets_its_prefix_once(pieces, out):
    prefix = LinePrefix(b"[x] ")

    assert b"".join(map(prefix.feed, pieces)) == out


@pytest.mark.parametrize(
    "pieces, lines",
    [
        pytest.param([b"one\ntwo\nthr", b"ee\n"], ("two", "three"), id="the last ones"),
        pytest.param([b"one\r\nha", b"lf"], ("one", "half"), id="one that was not ended"),
        pytest.param([b"y" * 50] * 100, ("y" * 10,), id="bounded in both directions"),
        pytest.param([b"\xff\xfe ok\n"], ("\ufffd\ufffd ok",), id="text whatever was written"),
    ],
)
def test_the_tail_has_the_last_lines(pieces, lines):
    tail = LineTail(2, width=10)
    for piece in pieces:
        tail.feed(piece)

    assert tail.lines() == lines


@given(PIECES)
def test_the_tail_is_the_same_for_all_pieces(pieces):
    whole, parts = LineTail(3), LineTail(3)
    whole.feed(b"".join(pieces))
    for piece in pieces:
        parts.feed(piece)

    assert parts.lines() == whole.lines()


class Terminal:
    """Fake sink that keeps the bytes written."""

    def __init__(self):
        self.pieces = []
        self.is_full = False

    def write(self, data):
        if data:
            self.pieces.append(data)


class World:
    def __init__(self, loop, owned, path):
        self.loop = loop
        self.terminal = Terminal()
        self.tail = LineTail(3)
        self.failures = []
        self.ended = []
        self.path = path
        self.log = LogFile(path, owned, self.failures.append)
        reader, self.writer = os.pipe()
        os.set_blocking(reader, False)
        self.relay = OutputRelay(
            owned.own(reader),
            loop=loop,
            descriptors=owned,
            sink=self.terminal,
            log=self.log,
            tail=self.tail,
            partial_line=0.1,
            on_end=self.ended.append,
        )

    def write(self, data):
        os.write(self.writer, data)
        self.loop.run_once()

    def hang_up(self):
        if self.writer is not None:
            os.close(self.writer)
            self.writer = None

    def close(self):
        self.hang_up()
        self.relay.close()
        self.log.close()


@pytest.fixture
def world(ticking, owned, tmp_path):
    world = World(ticking, owned, tmp_path / "log")
    yield world
    world.close()


def test_the_beginning_of_a_line_passes_after_a_tenth_of_a_second_and_the_log_waits(world, clock):
    world.write(b"50%")
    assert world.terminal.pieces == []
    clock.time = 0.11
    world.loop.run_once()
    assert world.terminal.pieces == [b"50%"]
    assert not world.path.exists()

    world.write(b" done\n")

    assert world.terminal.pieces == [b"50%", b" done\n"]
    assert world.path.read_bytes() == b"50% done\n"


def test_the_end_brings_the_last_words(world):
    world.write(b"no newline")

    world.relay.finish()

    assert world.terminal.pieces == [b"no newline"]
    assert world.path.read_bytes() == b"no newline"
    assert world.tail.lines() == ("no newline",)


@pytest.mark.parametrize("full", [False, True], ids=["room", "full terminal"])
def test_all_that_is_in_the_pipe_is_drained_at_the_end(world, full):
    data = b"x" * 50_000 + b"\n"
    world.terminal.is_full = full
    os.write(world.writer, data)
    world.hang_up()

    world.relay.finish()

    assert b"".join(world.terminal.pieces) == data
    assert world.path.stat().st_mode & 0o077 == 0
    assert world.ended == [world.relay]


def test_a_pipe_that_others_hold_stays_open_after_the_end(world):
    world.relay.finish()
    assert world.ended == []

    world.write(b"a grandchild\n")

    assert world.terminal.pieces == [b"a grandchild\n"]


def test_nothing_is_read_while_the_terminal_is_full(world):
    world.terminal.is_full = True
    world.write(b"one\n")
    world.write(b"two\n")
    assert world.terminal.pieces == []

    world.terminal.is_full = False
    world.relay.resume()
    world.loop.run_once()

    assert world.terminal.pieces == [b"one\ntwo\n"]


FULL = pytest.param("/dev/full", "No space left", marks=needs_full_device)


@pytest.mark.parametrize("target, words", [("missing/log", "is incomplete"), FULL])
def test_a_log_that_cannot_be_written_is_reported_once_and_stops_nothing(world, target, words):
    world.path.symlink_to(target)
    world.write(b"one\n")
    world.write(b"two\n")

    assert world.terminal.pieces == [b"one\n", b"two\n"]
    (failure,) = world.failures
    assert words in failure


def test_a_log_goes_on_once_there_is_room_without_half_of_what_was_lost(world):
    world.write(b"one\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len("one\ntw"), hard))
    try:
        world.write(b"two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    world.write(b"three\n")

    assert world.path.read_bytes() == b"one\nthree\n"
    assert len(world.failures) == 1


@pytest.fixture(params=["pipe", "terminal", "socket"])
def ends(request, owned):
    """The ends to read from and to write to."""
    if request.param == "pipe":
        reader, writer = os.pipe()
    elif request.param == "terminal":
        reader, writer = pty.openpty()
    else:
        reader, writer = (end.detach() for end in socket.socketpair())
    return owned.own(reader), owned.own(writer)


def test_a_reader_that_sleeps_gets_all_of_it_later(ends, ticking, owned):
    reader, writer = ends
    sink = Sink(writer, ticking, owned)
    text = PLENTY[:900_000]
    sink.write(text)
    # its other holders have the same flags
    assert os.get_blocking(writer)

    found = bytearray()
    while len(found) < len(text):
        # a terminal puts a carriage return before each newline
        found += os.read(reader, 65536).replace(b"\r", b"")
        ticking.run_once()

    assert found == text
    sink.detach()


def test_writers_are_held_back_while_it_is_full_and_called_when_not(ticking, owned):
    reader, writer = owned.pipe()
    room = []
    sink = Sink(writer, ticking, owned, lambda: room.append(True))
    sink.write(b"x")
    assert not sink.is_full

    sink.write(PLENTY)
    assert sink.is_full
    # nothing is taken, so this is given up
    sink.drain(0.01)
    assert room == []
    while not room:
        os.read(reader, 65536)
        ticking.run_once()

    assert not sink.is_full


def test_files_are_written_where_they_end(ticking, owned, tmp_path):
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        sink = Sink(file.fileno(), ticking, owned)
        file.write(b"before ")
        sink.write(b"sink ")
        file.write(b"after")

    assert (tmp_path / "file").read_bytes() == b"before sink after"


@pytest.mark.parametrize("closed", [False, True], ids=["null device", "closed"])
def test_what_swallows_everything_is_never_full(ticking, owned, closed):
    null = owned.own(os.open(os.devnull, os.O_WRONLY))
    if closed:
        owned.close(null)
    sink = Sink(null, ticking, owned)
    sink.write(PLENTY)

    assert not sink.is_full
