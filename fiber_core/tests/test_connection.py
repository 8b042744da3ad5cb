"""Pipes between processes as users see them."""

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
from fiber.connection import wait

pytestmark = pytest.mark.usefixtures("shared_runtime")

PATIENCE = 30


def start(target, *args):
    child = fiber.Process(target=target, args=args)
    child.start()
    return child


def finish(*children):
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0


@pytest.fixture
def ends():
    first, second = fiber.Pipe()
    with first, second:
        yield first, second


# what children do


def echo(end):
    try:
        while True:
            end.send(end.recv())
    except EOFError:
        end.close()


def echo_bytes(end):
    end.send_bytes(end.recv_bytes())


def send_range(end, count):
    for number in range(count):
        end.send(number)


def close_and_wait(end, go):
    end.close()
    go.get()


def wait_forever(end, ready):
    ready.put(True)
    signal.pause()


def read_some(end, results):
    got = []
    while (value := end.recv()) is not None:
        got.append(value)
    results.put(got)


def pass_on(source):
    end = source.get()
    end.send("through a queue")


def say_hello(task):
    number, end = task
    end.send(number)


def poll_and_tell(end, results):
    results.put(end.poll())
    results.put(end.poll(0.01))
    results.put("polled")
    results.put(end.poll(PATIENCE))
    results.put(wait([end], PATIENCE) == [end])
    results.put(end.recv())


def send_until_broken(end, results):
    try:
        while True:
            end.send(bytes(1000))
    except BrokenPipeError:
        results.put("broken")


def make_pipe(results, go):
    mine, theirs = fiber.Pipe()
    results.put(theirs)
    theirs.close()
    mine.send("from its maker")
    go.get()


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


def test_a_closed_end_says_so(ends):
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


def test_what_cannot_be_pickled_is_an_error_at_once(ends):
    with pytest.raises(TypeError, match="pickle"):
        ends[0].send(threading.Lock())


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


# -- between processes


@pytest.mark.parametrize("size", [10, 2**20 + 1, 20 * 2**20])
def test_messages_of_any_size_make_the_way_there_and_back(ends, size):
    here, there = ends
    child = start(echo, there)
    there.close()
    value = os.urandom(1000) * (size // 1000 + 1)
    here.send(value)

    assert here.recv() == value
    here.close()
    finish(child)


def test_bytes_make_the_way_there_and_back(ends):
    here, there = ends
    child = start(echo_bytes, there)
    here.send_bytes(b"\x00\xff" * 100)

    assert here.recv_bytes() == b"\x00\xff" * 100
    finish(child)


def test_an_end_closed_here_right_after_the_start_works_in_the_child(ends):
    here, there = ends
    child = start(echo, there)
    there.close()
    here.send("hello")

    assert here.recv() == "hello"
    here.close()
    finish(child)


def test_the_childs_close_is_heard_while_it_lives_on(ends):
    here, there = ends
    go = fiber.Queue()
    child = start(close_and_wait, there, go)
    there.close()

    with pytest.raises(EOFError):
        here.recv()
    go.put(True)
    finish(child)


def test_the_childs_end_is_heard_after_all_it_sent(ends):
    here, there = ends
    child = start(send_range, there, 1000)
    there.close()

    assert [here.recv() for _ in range(1000)] == list(range(1000))
    with pytest.raises(EOFError):
        here.recv()
    finish(child)


def test_the_childs_death_is_heard(ends):
    here, there = ends
    ready = fiber.Queue()
    child = start(wait_forever, there, ready)
    there.close()
    ready.get(timeout=PATIENCE)
    os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(EOFError):
        here.recv()
    with pytest.raises(BrokenPipeError):
        here.send(1)
    child.join(PATIENCE)


def test_a_child_that_never_came_so_far_is_heard_of_as_well(ends):
    here, there = ends
    child = start(len, there)
    there.close()

    with pytest.raises(EOFError):
        here.recv()
    child.join(PATIENCE)
    assert child.exitcode == 1


def test_a_child_hears_that_nobody_reads(ends):
    here, there = ends
    results = fiber.Queue()
    child = start(send_until_broken, there, results)
    there.close()
    here.recv()
    here.close()

    assert results.get(timeout=PATIENCE) == "broken"
    finish(child)


def test_many_readers_of_one_end_get_each_message_once(ends):
    here, there = ends
    results = fiber.Queue()
    readers = [start(read_some, there, results) for _ in range(3)]
    for number in range(300):
        here.send(number)
    for _ in readers:
        here.send(None)
    got = [results.get(timeout=PATIENCE) for _ in readers]
    finish(*readers)

    assert sorted(number for part in got for number in part) == list(range(300))


def test_many_writers_of_one_end_are_heard_whole(ends):
    here, there = ends
    writers = [start(send_range, there, 200) for _ in range(3)]
    got = [here.recv() for _ in range(600)]
    finish(*writers)

    assert sorted(got) == sorted(list(range(200)) * 3)


def test_an_end_travels_through_a_queue(ends):
    here, there = ends
    outer = fiber.Queue()
    child = start(pass_on, outer)
    outer.put(there)
    there.close()

    assert here.recv() == "through a queue"
    with pytest.raises(EOFError):
        here.recv()
    finish(child)


def test_an_end_travels_in_the_arguments_of_a_pools_tasks(ends):
    here, there = ends
    with fiber.Pool(2) as pool:
        pool.map(say_hello, [(number, there) for number in range(10)])
        there.close()

        assert sorted(here.recv() for _ in range(10)) == list(range(10))


def test_a_pipe_whose_maker_keeps_one_end_ends_with_it():
    results, go = fiber.Queue(), fiber.Queue()
    child = start(make_pipe, results, go)
    end = results.get(timeout=PATIENCE)
    assert end.recv() == "from its maker"
    os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(EOFError, match="the process that this pipe lives in is gone"):
        end.recv()
    with pytest.raises(BrokenPipeError):
        end.send(1)
    child.join(PATIENCE)


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


def test_poll_here(ends):
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


def test_the_stdlibs_wait_takes_ours_as_well(ends):
    here, there = ends
    there.send(1)

    assert stdlib.wait([here], PATIENCE) == [here]


def test_wait_tells_of_an_end(ends):
    here, there = ends
    here.fileno()
    there.close()

    assert wait([here], PATIENCE) == [here]
    with pytest.raises(EOFError):
        here.recv()


def test_two_handles_of_one_end_are_both_told(ends):
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
