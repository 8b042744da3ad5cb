"""Pipes in one process, and waiting for several things at once."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import socket
import threading
from multiprocessing import BufferTooShort
from multiprocessing import connection as stdlib
from pathlib import Path

import pytest

import fiber
from children import PATIENCE, finish, start
from fiber.connection import wait

pytestmark = pytest.mark.usefixtures("shared_runtime")


@pytest.fixture
def ends():
    first, second = fiber.Pipe()
    with first, second:
        yield first, second


def echo(end):
    try:
        while True:
            end.send(end.recv())
    except EOFError:
        end.close()


def poll_and_tell(end, results):
    results.put(end.poll())
    results.put(end.poll(0.01))
    results.put("polled")
    results.put(end.poll(PATIENCE))
    results.put(wait([end], PATIENCE) == [end])
    results.put(end.recv())


# -- in one process


def test_both_ends_send_and_receive(ends):
    first, second = ends
    first.send({"a": 1})
    second.send(None)

    assert second.recv() == {"a": 1}
    assert first.recv() is None


def test_a_one_way_pipe_has_a_reading_and_a_writing_end():
    reader, writer = fiber.Pipe(duplex=False)
    with reader, writer:
        assert (reader.readable, reader.writable) == (True, False)
        assert (writer.readable, writer.writable) == (False, True)
        writer.send(1)
        assert reader.recv() == 1
        with pytest.raises(OSError, match="connection is read-only"):
            reader.send(1)
        with pytest.raises(OSError, match="connection is write-only"):
            writer.recv()
        with pytest.raises(OSError, match="connection is write-only"):
            writer.poll()


def test_a_closed_end_raises(ends):
    end, _ = ends
    assert not end.closed
    end.close()
    end.close()
    assert end.closed
    for use in (end.recv, end.recv_bytes, end.poll, end.fileno, lambda: end.send(1)):
        with pytest.raises(OSError, match="handle is closed"):
            use()
    with pytest.raises(OSError, match="handle is closed"):
        pickle.dumps(end)


def test_bytes_as_they_are(ends):
    first, second = ends
    first.send_bytes(b"0123456789", 2, 5)
    first.send_bytes(memoryview(b"0123456789"), 8)
    first.send_bytes(b"")

    assert [second.recv_bytes() for _ in range(3)] == [b"23456", b"89", b""]


@pytest.mark.parametrize(
    "arguments,text",
    [
        ((b"abc", -1), "offset is negative"),
        ((b"abc", 4), "buffer length < offset"),
        ((b"abc", 0, -1), "size is negative"),
        ((b"abc", 2, 2), "buffer length < offset . size"),
    ],
)
def test_parts_that_are_not_there_are_refused(ends, arguments, text):
    with pytest.raises(ValueError, match=text):
        ends[0].send_bytes(*arguments)


def test_bytes_into_a_buffer(ends):
    first, second = ends
    buffer = bytearray(10)
    first.send_bytes(b"abc")
    assert second.recv_bytes_into(buffer, 2) == 3
    assert buffer == b"\0\0abc\0\0\0\0\0"

    first.send_bytes(b"0123456789x")
    with pytest.raises(BufferTooShort) as caught:
        second.recv_bytes_into(buffer)
    assert caught.value.args == (b"0123456789x",)
    with pytest.raises(ValueError, match="negative offset"):
        second.recv_bytes_into(buffer, -1)
    with pytest.raises(ValueError, match="offset too large"):
        second.recv_bytes_into(buffer, 11)


def test_a_message_longer_than_allowed_ends_the_reading(ends):
    first, second = ends
    first.send_bytes(b"abcdef")
    with pytest.raises(ValueError, match="negative maxlength"):
        second.recv_bytes(-1)

    with pytest.raises(OSError, match="bad message length"):
        second.recv_bytes(5)
    assert not second.readable
    second.send(1)
    assert first.recv() == 1


def test_objects_and_bytes_mix_as_in_the_stdlib(ends):
    first, second = ends
    first.send([1, 2])
    assert pickle.loads(second.recv_bytes()) == [1, 2]
    first.send_bytes(pickle.dumps("x"))
    assert second.recv() == "x"
    with pytest.raises(TypeError, match="pickle"):
        first.send(threading.Lock())


def test_the_end_comes_after_the_last_message():
    first, second = fiber.Pipe()
    first.send(1)
    first.close()

    assert second.poll()
    assert second.recv() == 1
    assert second.poll()
    with pytest.raises(EOFError):
        second.recv()
    with pytest.raises(BrokenPipeError):
        second.send(1)


def test_a_forgotten_end_is_a_closed_one():
    first, second = fiber.Pipe()
    first.send(1)
    del first
    gc.collect()

    assert second.recv() == 1
    with pytest.raises(EOFError):
        second.recv()


# -- poll and wait


def test_poll_in_another_process(ends):
    here, there = ends
    results = fiber.Queue()
    child = start(poll_and_tell, there, results)
    there.close()
    got = [results.get(timeout=PATIENCE) for _ in range(3)]
    here.send("now")
    got += [results.get(timeout=PATIENCE) for _ in range(3)]

    assert got == [False, False, "polled", True, True, "now"]
    finish(child)


def test_poll_in_one_process(ends):
    first, second = ends
    assert not first.poll()
    assert not first.poll(0.01)
    second.send(1)
    assert first.poll()
    assert first.poll(None)


def test_wait_for_connections_sentinels_sockets_and_the_stdlibs_pipes_at_once(ends):
    here, there = ends
    one, other = socket.socketpair()
    theirs, mine = stdlib.Pipe()
    child = start(echo, there)
    there.close()
    with one, other, theirs, mine:
        everything = [here, one, mine, child.sentinel]
        assert wait(everything, 0) == []
        other.send(b"x")
        assert wait(everything, PATIENCE) == [one]
        one.recv(1)
        theirs.send(1)
        assert wait(everything, PATIENCE) == [mine]
        mine.recv()
        here.send("back")
        assert wait(everything, PATIENCE) == [here]
        assert here.recv() == "back"
        here.close()
        assert wait([one, mine, child.sentinel], PATIENCE) == [child.sentinel]
    finish(child)


@pytest.mark.parametrize("waits", [wait, stdlib.wait], ids=["ours", "the stdlib's"])
def test_wait_returns_where_there_is_something_and_at_an_end(ends, waits):
    here, there = ends
    there.send(1)
    assert waits([here], PATIENCE) == [here]
    assert here.recv() == 1
    there.close()

    assert waits([here], PATIENCE) == [here]
    with pytest.raises(EOFError):
        here.recv()


def test_two_handles_of_one_end_both_get_the_end(ends):
    here, there = ends
    again = pickle.loads(pickle.dumps(here))
    with again:
        there.send(1)
        assert wait([here, again], PATIENCE) == [here, again]


def test_no_descriptor_is_left():
    def descriptors():
        return {path.name for path in Path("/dev/fd").iterdir()}

    before = descriptors()
    first, second = fiber.Pipe()
    one_way = fiber.Pipe(duplex=False)
    for end in (first, second, *one_way):
        end.fileno()
        end.close()

    assert descriptors() <= before


def test_threads_wait_on_both_ends(ends):
    first, second = ends
    results = queue.Queue()
    threads = [
        threading.Thread(target=lambda end=end: results.put(end.recv())) for end in (first, second)
    ]
    for thread in threads:
        thread.start()
    first.send("to the second")
    second.send("to the first")
    for thread in threads:
        thread.join(PATIENCE)

    assert {results.get(), results.get()} == {"to the first", "to the second"}


# -- the last words of a sender, whatever ends it


MESSAGES = 20


def send_and_end(end, size, ending):
    for number in range(MESSAGES):
        end.send((number, bytes(size)))
    if ending == "close":
        end.close()
    if ending in ("close", "exit"):
        os._exit(0)
    os.kill(os.getpid(), ending)


def received(end):
    numbers = []
    try:
        while end.poll(PATIENCE):
            numbers.append(end.recv()[0])
    except EOFError:
        return numbers
    raise AssertionError(f"no end came after {numbers}")


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("ending", ["exit", signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_what_was_sent_arrives_however_the_sender_ends(ending, size):
    reader, writer = fiber.Pipe(duplex=False)
    with reader:
        child = start(send_and_end, writer, size, ending)
        writer.close()

        assert received(reader) == list(range(MESSAGES))
        child.join(PATIENCE)


@pytest.mark.any_backend
def test_a_closed_end_has_sent_all_also_where_the_kernel_does_not_keep_it():
    reader, writer = fiber.Pipe(duplex=False)
    with reader:
        child = start(send_and_end, writer, 10, "close")
        writer.close()

        assert received(reader) == list(range(MESSAGES))
        finish(child)
