"""Writing in another process than the owner's: room, and the lack of it."""

import queue

import pytest

from fiber.exceptions import PeerLostError
from objects_world import in_thread, put, take
from wire_world import until


def test_a_full_queue_refuses_or_times_out(owner, other):
    mine = owner.queue(1)
    theirs = other.remote(mine)
    put(theirs, b"1")

    with pytest.raises(queue.Full):
        put(theirs, b"2", block=False)
    with pytest.raises(queue.Full):
        put(theirs, b"2", timeout=0.01)
    assert take(mine) == b"1"
    put(theirs, b"3", timeout=20)
    assert take(mine) == b"3"


def test_a_put_waits_for_room_that_a_reader_elsewhere_makes(owner, other, third):
    mine = owner.queue(1)
    writer, reader = other.remote(mine), third.remote(mine)
    put(mine, b"1")
    done = in_thread(lambda: put(writer, b"2"))
    until(lambda: mine.states[0].has_waiting_writers)

    assert take(reader) == b"1"
    done()
    assert take(reader) == b"2"


def test_a_pipe_holds_its_writer_back_and_loses_nothing(owner, other):
    mine = owner.pipe()
    theirs = other.remote(mine, end=0)
    block = bytes(2**20)
    sent = []

    def send():
        for _ in range(40):
            theirs.writer(0).put(block, True, None)
            sent.append(1)

    done = in_thread(send)
    until(lambda: mine.states[0].has_waiting_writers)
    assert len(sent) < 30
    for _ in range(40):
        assert len(mine.reader(0).take(True, 20)) == 2**20
    done()


def test_a_writer_elsewhere_need_not_ask_for_each_item(owner, other):
    mine = owner.queue(100)
    theirs = other.remote(mine)
    put(theirs, b"0")
    writer = theirs.writer(0)
    assert writer._credit > 10
    done = in_thread(lambda: put(theirs, *(b"%d" % n for n in range(1, 500))))

    assert [int(take(mine)) for _ in range(500)] == list(range(500))
    done()


def test_credit_of_one_writer_goes_to_another_that_waits(owner, other, third):
    mine = owner.queue(10)
    idle, busy = other.remote(mine), third.remote(mine)
    put(idle, b"0")
    assert idle.writer(0)._credit
    put(busy, *(b"%d" % n for n in range(1, 10)), timeout=20)

    assert mine.size(0) == 10
    with pytest.raises(queue.Full):
        put(idle, b"x", block=False)


def test_a_thread_of_the_owner_gets_it_as_well(owner, other):
    mine = owner.queue(4)
    theirs = other.remote(mine)
    put(theirs, b"0")
    put(mine, b"1", b"2", b"3", block=False)

    assert mine.size(0) == 4


def test_a_put_that_is_the_last_thing_its_owner_waited_for_is_no_failure(owner, other, monkeypatch):
    mine = owner.queue()
    theirs = other.remote(mine)
    writer = theirs.writer(0)
    cast = theirs.cast

    def cast_and_end(segments):
        cast(segments)
        # before the writer's thread goes on
        writer.fail(PeerLostError("gone"))

    monkeypatch.setattr(theirs, "cast", cast_and_end)
    put(theirs, b"the last thing")

    assert take(mine) == b"the last thing"
    with pytest.raises(PeerLostError):
        put(theirs, b"one too many")


def test_a_put_that_was_dropped_with_its_owner_is_an_error(owner, other, monkeypatch):
    theirs = other.remote(owner.queue())
    writer = theirs.writer(0)
    push = writer._push

    def lost_before(**how):
        writer.fail(PeerLostError("gone"))
        return push(**how)

    monkeypatch.setattr(writer, "_push", lost_before)
    with pytest.raises(PeerLostError):
        put(theirs, b"1")
