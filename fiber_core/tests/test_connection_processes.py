"""Pipes between processes as users see them."""

from __future__ import annotations

import gc
import os
import signal

import pytest

import fiber
import process_signals
from children import PATIENCE, finish, start
from fiber.connection import wait

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


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


def send_range(end, count):
    for number in range(count):
        end.send(number)


def close_and_wait(ends, go):
    ends[0].close()
    go.get()


def forget_and_wait(ends, go):
    ends.clear()
    gc.collect()
    go.get()


def wait_forever(end, ready):
    ready.put(True)
    signal.pause()


def read_some(end, results):
    got = []
    while (value := end.recv()) is not None:
        got.append(value)
    results.put(got)


def say_hello(task):
    number, end = task
    end.send(number)


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
    child = start(lambda: there.send_bytes(there.recv_bytes()))
    here.send_bytes(b"\x00\xff" * 100)

    assert here.recv_bytes() == b"\x00\xff" * 100
    finish(child)


@pytest.mark.parametrize("leave", [close_and_wait, forget_and_wait])
def test_an_end_that_the_child_closes_or_forgets_ends_the_pipe_while_it_lives_on(ends, leave):
    here, there = ends
    go = fiber.Queue()
    child = start(leave, [there], go)
    there.close()

    with pytest.raises(EOFError):
        here.recv()
    go.put(True)
    finish(child)


def test_the_childs_end_comes_after_all_it_sent(ends):
    here, there = ends
    child = start(send_range, there, 1000)
    there.close()

    assert [here.recv() for _ in range(1000)] == list(range(1000))
    with pytest.raises(EOFError):
        here.recv()
    finish(child)


def test_the_childs_death_ends_the_pipe(ends):
    here, there = ends
    ready = fiber.Queue()
    child = start(wait_forever, there, ready)
    there.close()
    ready.get(timeout=PATIENCE)
    process_signals.kill(child)

    with pytest.raises(EOFError):
        here.recv()
    with pytest.raises(BrokenPipeError):
        here.send(1)
    child.join(PATIENCE)


def test_a_child_that_died_before_it_loaded_the_end_ends_the_pipe(ends):
    here, there = ends
    child = start(len, there)
    there.close()

    with pytest.raises(EOFError):
        here.recv()
    child.join(PATIENCE)
    assert child.exitcode == 1


def test_a_child_gets_an_error_where_there_is_no_reader(ends):
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


def test_many_writers_of_one_end_are_read_whole(ends):
    here, there = ends
    writers = [start(send_range, there, 200) for _ in range(3)]
    got = [here.recv() for _ in range(600)]
    finish(*writers)

    assert sorted(got) == sorted(list(range(200)) * 3)


def test_an_end_travels_through_a_queue(ends):
    here, there = ends
    outer = fiber.Queue()
    child = start(lambda: outer.get().send("through a queue"))
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
    process_signals.kill(child)

    with pytest.raises(EOFError, match="the process that this pipe lives in is gone"):
        end.recv()
    with pytest.raises(BrokenPipeError):
        end.send(1)
    child.join(PATIENCE)


# -- several processes that wait for one end


def wait_and_tell(end, news, go):
    """Wait for something to read and leave it there."""
    news.put(wait([end], PATIENCE) == [end])
    go.get()
    end.close()


def wait_and_read(end, results):
    """Read whatever comes, by one's own waiting."""
    while True:
        if wait([end], PATIENCE) != [end]:
            return
        if not end.poll(0):
            # another was faster
            continue
        try:
            results.put(end.recv())
        except EOFError:
            return


def test_all_that_wait_for_an_end_get_it_without_reading(ends):
    here, there = ends
    news, go = fiber.Queue(), fiber.Queue()
    children = [start(wait_and_tell, there, news, go) for _ in range(3)]
    here.send("for one of you")
    assert [news.get(timeout=PATIENCE) for _ in children] == [True] * 3
    # it was theirs to look at, and is still to be read
    assert wait([there], PATIENCE) == [there]
    assert there.recv() == "for one of you"
    assert wait([there], 0) == []
    for _ in children:
        go.put(None)
    finish(*children)


def test_one_that_waited_once_keeps_nothing_from_others(ends):
    here, there = ends
    news, go, results = fiber.Queue(), fiber.Queue(), fiber.Queue()
    idle = start(wait_and_tell, there, news, go)
    here.send(0)
    assert news.get(timeout=PATIENCE)
    busy = start(wait_and_read, there, results)
    there.close()
    for number in range(1, 20):
        here.send(number)
    # the first comes back from the one that has it, and may be read after later ones
    assert sorted(results.get(timeout=PATIENCE) for _ in range(20)) == list(range(20))
    here.close()
    go.put(None)
    finish(idle, busy)


def test_those_that_wait_for_one_end_get_each_message_once(ends):
    here, there = ends
    results = fiber.Queue()
    children = [start(wait_and_read, there, results) for _ in range(2)]
    there.close()
    for number in range(200):
        here.send(number)
    assert sorted(results.get(timeout=PATIENCE) for _ in range(200)) == list(range(200))
    here.close()
    finish(*children)
