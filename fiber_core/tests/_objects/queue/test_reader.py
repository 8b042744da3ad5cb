"""Reading in another process than the owner's."""

import queue
import select
import time

import pytest

from objects_world import in_thread, put, readable, take
from wire_world import until

# -- items


def test_items_go_both_ways_in_order(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    put(theirs, b"1", b"2", b"3")
    assert [take(mine) for _ in range(3)] == [b"1", b"2", b"3"]

    put(mine, b"4", b"5")
    assert [take(theirs) for _ in range(2)] == [b"4", b"5"]


def test_items_of_any_size_arrive(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    large = bytes(range(256)) * 100_000
    put(theirs, b"", large, b"x")

    assert [take(mine) == item for item in (b"", large, b"x")] == [True] * 3
    put(mine, large)
    assert take(theirs) == large


def test_many_small_items_keep_their_order(owner, other, third):
    mine = owner.queue()
    writer, reader = other.remote(mine), third.remote(mine)
    count = 20_000
    put_all = in_thread(lambda: put(writer, *(str(n).encode() for n in range(count))))

    assert [int(take(reader)) for _ in range(count)] == list(range(count))
    put_all()


def test_a_waiting_reader_elsewhere_gets_what_comes(owner, other):
    mine = owner.queue()
    got = in_thread(lambda: take(other.remote(mine)))
    until(lambda: mine.states[0]._waiting)
    put(mine, b"1")

    assert got() == b"1"


def test_there_is_nothing_for_one_that_does_not_wait(owner, other):
    theirs = other.remote(owner.queue())

    with pytest.raises(queue.Empty):
        take(theirs, block=False)


def test_a_timeout_ends_a_wait_and_loses_nothing(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    with pytest.raises(queue.Empty):
        take(theirs, timeout=0.01)
    put(mine, b"1")

    assert take(theirs) == b"1"


def test_nobody_waits_at_the_owner_for_one_that_gave_up(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    with pytest.raises(queue.Empty):
        take(theirs, timeout=0.01)

    until(lambda: not mine.states[0]._waiting)
    put(mine, b"1")
    assert take(mine) == b"1"


def test_several_threads_of_one_process_share_what_comes(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    got = [in_thread(lambda: take(theirs)) for _ in range(4)]
    put(mine, *(str(n).encode() for n in range(4)))

    assert sorted(get() for get in got) == [b"0", b"1", b"2", b"3"]


def test_the_size_counts_what_was_put_and_not_what_was_handed_out(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    put(theirs, b"1", b"2", b"3")
    assert theirs.size(0) == 3

    take(theirs)
    assert theirs.size(0) == mine.size(0) == 2


# -- readers


def test_what_a_lost_reader_had_not_handed_out_comes_back_in_order(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    reader = theirs.reader(0)
    reader._batch, reader._since = 1000, time.monotonic()
    put(mine, *(str(n).encode() for n in range(10)))
    assert [take(theirs) for _ in range(3)] == [b"0", b"1", b"2"]
    assert len(reader._buffer) == 7
    other.die()

    assert [take(mine) for _ in range(7)] == [str(n).encode() for n in range(3, 10)]


def test_a_remote_reader_reports_what_it_has_handed_out(world, owner):
    mine = owner.queue()
    far = world.node("far", host="elsewhere")
    theirs = far.remote(mine)
    reader = theirs.reader(0)
    assert reader.slot.index == -1
    reader._batch, reader._since = 1000, time.monotonic()
    put(mine, *(str(n).encode() for n in range(10)))
    for _ in range(3):
        take(theirs)

    until(lambda: mine.size(0) == 7)


def test_items_parked_with_one_reader_go_to_another_that_waits(owner, other, third):
    mine = owner.queue()
    slow, quick = other.remote(mine), third.remote(mine)
    reader = slow.reader(0)
    reader._batch, reader._since = 1000, time.monotonic()
    put(mine, *(str(n).encode() for n in range(6)))
    assert take(slow) == b"0"
    assert reader._buffer

    # what nobody had fetched first, then what came back
    assert [take(quick) for _ in range(5)] == [b"3", b"4", b"5", b"1", b"2"]
    assert not reader._buffer


def test_they_go_to_a_thread_of_the_owner_too_even_to_one_that_does_not_wait(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    reader = theirs.reader(0)
    reader._batch, reader._since = 1000, time.monotonic()
    put(mine, b"0", b"1", b"2")
    take(theirs)

    assert take(mine, block=False) == b"1"


def test_after_a_recall_its_reader_goes_on(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    reader = theirs.reader(0)
    reader._batch, reader._since = 1000, time.monotonic()
    put(mine, *(str(n).encode() for n in range(6)))
    assert take(theirs) == b"0"
    taken = [take(mine, block=False) for _ in range(2)]
    taken += [take(theirs) for _ in range(3)]

    assert sorted(taken) == [b"1", b"2", b"3", b"4", b"5"]


# -- a descriptor that tells


def test_a_ready_fd_is_readable_while_there_are_items(owner, other):
    mine = owner.pipe()
    reader = other.remote(mine, end=1).reader(0)
    ready_fd = reader.ready_fd()
    assert not select.select([ready_fd.fd], [], [], 0)[0]
    mine.writer(0).put(b"1", True, None)
    assert readable(ready_fd)
    assert bytes(reader.take(True, 20)) == b"1"
    assert not select.select([ready_fd.fd], [], [], 0)[0]

    mine.writer(0).put(b"2", True, None)
    assert readable(ready_fd)


def test_a_ready_fd_is_readable_at_the_end(owner, other):
    mine = owner.pipe()
    reader = other.remote(mine, end=1).reader(0)
    ready_fd = reader.ready_fd()
    mine.drop(0)

    assert readable(ready_fd)
    with pytest.raises(EOFError):
        reader.take(True, 20)


def test_a_ready_fd_is_readable_at_the_owners_death(owner, other):
    mine = owner.pipe()
    reader = other.remote(mine, end=1).reader(0)
    ready_fd = reader.ready_fd()
    owner.die()

    assert readable(ready_fd)


def test_a_ready_fd_works_beside_threads_that_wait(owner, other):
    mine = owner.pipe()
    reader = other.remote(mine, end=1).reader(0)
    ready_fd = reader.ready_fd()
    with pytest.raises(queue.Empty):
        reader.take(True, 0.01)
    got = in_thread(lambda: bytes(reader.take(True, 20)))
    mine.writer(0).put(b"1", True, None)
    assert got() == b"1"

    mine.writer(0).put(b"2", True, None)
    assert readable(ready_fd)
    assert reader.poll(0)
