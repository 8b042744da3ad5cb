"""A queue or pipe as threads of its owner use it."""

import queue
import select

import pytest

from fiber._objects.address import Kind
from objects_world import in_thread, put, readable, take
from wire_world import until


def test_items_come_out_as_they_went_in(owner):
    mine = owner.queue()
    put(mine, b"1", b"2")

    assert [take(mine), take(mine)] == [b"1", b"2"]


def test_a_thread_that_waits_gets_what_comes(owner):
    mine = owner.queue()
    got = in_thread(lambda: take(mine))
    until(lambda: mine.states[0]._waiting)
    put(mine, b"1")

    assert got() == b"1"


def test_it_works_without_any_connection(owner):
    mine = owner.queue()
    put(mine, b"1")
    take(mine)

    assert mine.target == 0


@pytest.mark.parametrize("block,timeout", [(False, None), (True, 0.01)])
def test_an_empty_queue_raises_empty(owner, block, timeout):
    mine = owner.queue()

    with pytest.raises(queue.Empty):
        take(mine, timeout, block)
    assert not mine.states[0]._waiting


@pytest.mark.parametrize("block,timeout", [(False, None), (True, 0.01)])
def test_a_full_queue_raises_full(owner, block, timeout):
    mine = owner.queue(1)
    put(mine, b"1")

    with pytest.raises(queue.Full):
        put(mine, b"2", timeout=timeout, block=block)
    assert not mine.states[0].has_waiting_writers


def test_a_thread_waits_for_room(owner):
    mine = owner.queue(1)
    put(mine, b"1")
    done = in_thread(lambda: put(mine, b"2"))
    until(lambda: mine.states[0].has_waiting_writers)

    assert take(mine) == b"1"
    done()
    assert take(mine) == b"2"


def test_an_interrupted_wait_takes_nothing_with_it(owner, monkeypatch):
    mine = owner.queue()

    def interrupted(gate, timeout):
        put(mine, b"1")
        raise KeyboardInterrupt

    monkeypatch.setattr("fiber._objects.queue.channel.wait_for_wakeup", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(mine)
    assert take(mine) == b"1"


def test_ready_waits_and_takes_nothing(owner):
    mine = owner.queue()
    reader = mine.reader(0)
    assert not reader.poll(0)
    assert not reader.poll(0.01)
    ready = in_thread(lambda: reader.poll(None))
    until(lambda: mine.states[0]._waiting)
    put(mine, b"1")

    assert ready()
    assert reader.poll(0)
    assert take(mine) == b"1"


def test_the_end_of_the_other_side(owner):
    mine = owner.pipe()
    mine.writer(0).put(b"1", True, None)
    mine.drop(0)
    reader = mine.reader(0)

    assert bytes(reader.take(True, None)) == b"1"
    assert reader.poll(0)
    with pytest.raises(EOFError):
        reader.take(True, None)
    with pytest.raises(BrokenPipeError):
        mine.writer(1).put(b"2", True, None)


def test_a_thread_that_waits_gets_the_end(owner):
    mine = owner.pipe()
    got = in_thread(lambda: mine.reader(0).take(True, None))
    until(lambda: mine.states[0]._waiting)
    mine.drop_soon(0)

    with pytest.raises(EOFError):
        got()


def test_a_ready_fd_is_readable_while_there_are_items_and_at_the_end(owner):
    mine = owner.pipe(Kind.ONE_WAY)
    reader = mine.reader(0)
    ready_fd = reader.ready_fd()
    assert not select.select([ready_fd.fd], [], [], 0)[0]
    mine.writer(0).put(b"1", True, None)
    assert readable(ready_fd)
    reader.take(True, None)
    assert not select.select([ready_fd.fd], [], [], 0)[0]
    mine.drop(0)

    assert readable(ready_fd)


def test_a_ready_fd_is_closed_with_the_last_handle(owner):
    mine = owner.pipe()
    ready_fd = mine.reader(0).ready_fd()
    mine.drop(1)

    assert ready_fd.fd == -1
