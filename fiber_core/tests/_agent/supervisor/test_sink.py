"""Writing to a terminal that does not read never stops the loop, and keeps the order."""

import os
import pty
import socket

import pytest

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.loop import Loop
from fiber._agent.supervisor.output import Sink

#: more than any pipe or terminal holds
PLENTY = b"".join(b"%08d\n" % i for i in range(400_000))


@pytest.fixture
def loop():
    loop = Loop()

    def tick():
        # always due, so that no turn waits
        loop.call_later(0, tick)

    tick()
    yield loop
    loop.close()


@pytest.fixture
def owned():
    owned = Descriptors()
    yield owned
    owned.close_all()


@pytest.fixture(params=["pipe", "terminal", "socket"])
def ends(request):
    """The ends to read from and to write to."""
    if request.param == "pipe":
        reader, writer = os.pipe()
    elif request.param == "terminal":
        reader, writer = pty.openpty()
    else:
        ours, theirs = socket.socketpair()
        reader, writer = ours.detach(), theirs.detach()
    yield reader, writer
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_a_reader_that_sleeps_gets_all_of_it_later(ends, loop, owned):
    reader, writer = ends
    sink = Sink(writer, loop, owned)
    text = PLENTY[:900_000]
    sink.write(text)

    found = bytearray()
    while len(found) < len(text):
        # a terminal puts a carriage return before each newline
        found += os.read(reader, 65536).replace(b"\r", b"")
        loop.run_once()

    assert found == text
    sink.detach()


def test_the_descriptors_flags_are_left_alone(ends, loop, owned):
    _, writer = ends
    sink = Sink(writer, loop, owned)
    sink.write(PLENTY)

    assert os.get_blocking(writer)
    sink.detach()


def test_writers_are_held_back_while_it_is_full_and_called_when_not(loop, owned):
    reader, writer = os.pipe()
    room = []
    sink = Sink(writer, loop, owned, lambda: room.append(True))
    sink.write(b"x")
    assert not sink.is_full

    sink.write(PLENTY)
    assert sink.is_full
    assert room == []
    while not room:
        os.read(reader, 65536)
        loop.run_once()

    assert not sink.is_full
    os.close(reader)
    os.close(writer)


def test_a_reader_that_has_gone_is_no_error(loop, owned):
    reader, writer = os.pipe()
    sink = Sink(writer, loop, owned)
    sink.write(PLENTY)
    os.close(reader)

    loop.run_once()
    sink.write(b"more")

    sink.drain(1000)
    assert not sink.is_full
    os.close(writer)


def test_files_are_written_where_they_end(loop, owned, tmp_path):
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        sink = Sink(file.fileno(), loop, owned)
        file.write(b"before ")
        sink.write(b"sink ")
        file.write(b"after")

    assert (tmp_path / "file").read_bytes() == b"before sink after"


def test_the_null_device_takes_everything(loop, owned):
    with open(os.devnull, "wb", buffering=0) as null:
        sink = Sink(null.fileno(), loop, owned)
        sink.write(PLENTY)

        assert not sink.is_full


def test_draining_writes_the_rest(loop, owned):
    reader, writer = os.pipe()
    sink = Sink(writer, loop, owned)
    sink.write(b"a" * 100_000)
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        size = 0
        while size < 100_000:
            size += len(os.read(reader, 65536))
        os._exit(0)

    sink.drain(30)

    assert os.waitpid(pid, 0)[1] == 0
    os.close(reader)
    os.close(writer)


def test_draining_gives_up_on_a_reader_that_takes_nothing(loop, owned):
    reader, writer = os.pipe()
    sink = Sink(writer, loop, owned)
    sink.write(PLENTY)

    sink.drain(0.01)

    assert sink.is_full
    os.close(reader)
    os.close(writer)


def test_one_that_is_closed_swallows_everything(loop, owned):
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)

    sink = Sink(writer, loop, owned)
    sink.write(b"x")

    assert not sink.is_full
