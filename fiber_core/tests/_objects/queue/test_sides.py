"""A queue or pipe as threads of its owner and other processes use it."""

import queue
import threading
from unittest.mock import Mock

import pytest

from fiber._objects.address import Kind
from fiber._objects.protocol import Notice, Op
from fiber._wire.endpoint import Peer
from fiber.exceptions import PeerLostError, TransportError
from objects_world import fetching, put, take
from wire_world import TIMEOUT, in_thread, readable, until


def numbers(count):
    return [b"%d" % n for n in range(count)]


def test_items_come_out_as_they_went_in(owner, side):
    made = owner.queue()
    mine = side(made)
    put(mine, b"1", b"2", b"3")
    assert mine.size(0) == made.size(0) == 3
    assert [take(made) for _ in range(3)] == [b"1", b"2", b"3"]

    put(made, b"4", b"5")
    assert take(mine) == b"4"
    assert mine.size(0) == made.size(0) == 1, "what was handed out is not counted"
    assert take(mine) == b"5"


def test_several_threads_of_one_process_share_what_comes(owner, side):
    made = owner.queue()
    mine = side(made)
    got = [in_thread(lambda: take(mine)) for _ in range(4)]
    until(lambda: made.states[0]._waiting)
    put(made, *numbers(4))

    assert sorted(get() for get in got) == numbers(4)


@pytest.mark.parametrize("block,timeout", [(False, None), (True, 0.01), (True, -1)])
def test_an_empty_queue_raises_empty_and_nobody_waits_any_more(owner, side, block, timeout):
    made = owner.queue()
    mine = side(made)
    with pytest.raises(queue.Empty):
        take(mine, timeout, block)

    until(lambda: not made.states[0]._waiting)
    put(made, b"1", b"2")
    assert take(made) == b"1"
    assert take(mine) == b"2"


@pytest.mark.parametrize("block,timeout", [(False, None), (True, 0.01), (True, -1)])
def test_a_full_queue_raises_full_and_nobody_waits_any_more(owner, side, block, timeout):
    made = owner.queue(1)
    mine = side(made)
    put(mine, b"1")
    with pytest.raises(queue.Full):
        put(mine, b"2", timeout=timeout, block=block)

    until(lambda: not made.states[0].has_waiting_writers)
    assert take(made) == b"1"
    put(mine, b"3", timeout=20)
    assert take(made) == b"3"


def test_ready_waits_and_takes_nothing(owner, side):
    made = owner.queue()
    mine = side(made)
    reader = mine.reader(0)
    assert not reader.poll(0)
    assert not reader.poll(0.01)
    ready = in_thread(lambda: reader.poll(None))
    until(lambda: made.states[0]._waiting)
    put(made, b"1")

    assert ready()
    assert reader.poll(0)
    assert take(mine) == b"1"


@pytest.mark.parametrize("kind", [Kind.PIPE, Kind.ONE_WAY])
def test_a_ready_fd_is_readable_while_there_are_items_and_at_the_end(owner, side, kind):
    made = owner.pipe(kind)
    reader = side(made, 1).reader(0)
    ready_fd = reader.ready_fd()
    assert not readable(ready_fd.fd, seconds=0)
    for item in (b"1", b"2"):
        made.writer(0).put(item, True, None)
        assert readable(ready_fd.fd)
        assert readable(ready_fd.fd)
        assert bytes(reader.take(True, 20)) == item
        assert not readable(ready_fd.fd, seconds=0)
    made.drop(0)

    assert readable(ready_fd.fd)
    assert reader.poll(0)
    with pytest.raises(EOFError):
        reader.take(True, 20)


def test_an_interrupted_wait_takes_nothing_with_it(mine, monkeypatch):
    def interrupted(*_):
        put(mine, b"1")
        raise KeyboardInterrupt

    monkeypatch.setattr("fiber._objects.queue.channel.wait_for_wakeup", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(mine)
    assert take(mine) == b"1"


def test_small_messages_of_a_pipe_are_acknowledged_and_asked_for_seldom(owner, other, monkeypatch):
    made = owner.pipe()
    theirs = other.remote(made, 1)
    asked, answered = [], []
    cast, send = theirs.cast, Peer.send
    monkeypatch.setattr(
        theirs, "cast", lambda segments: (asked.append(segments[0][0]), cast(segments))
    )
    monkeypatch.setattr(
        Peer,
        "send",
        lambda *it: (answered.append(it[4][0][0]), send(*it)),
    )
    there, back = made.shape.direction_read_by(1), made.shape.direction_read_by(0)
    for number in numbers(20):
        made.writer(there).put(number, True, None)
        theirs.writer(back).put(theirs.reader(there).take(True, 20), True, None)
        assert bytes(made.reader(back).take(True, 20)) == number
    assert asked.count(Op.PUT) == answered.count(Notice.ITEMS) == 20
    assert asked.count(Op.REQUEST) == 1
    assert answered.count(Notice.TAKEN) == 0


def test_small_items_there_and_back_between_two_processes_are_acknowledged_seldom(
    owner, other, third, monkeypatch
):
    given, returned = owner.queue(), owner.queue()
    sides = [[node.remote(queue) for queue in (given, returned)] for node in (other, third)]
    (asks, gets_back), (gets, gives_back) = sides
    answered, send = [], Peer.send
    monkeypatch.setattr(
        Peer, "send", lambda *it, **named: (answered.append(it[4][0][0]), send(*it, **named))
    )
    for number in numbers(20):
        put(asks, number)
        put(gives_back, take(gets))
        assert take(gets_back) == number
    assert answered.count(Notice.ITEMS) == 40
    # each is about another queue than the one at which its process waits
    assert answered.count(Notice.TAKEN) == 0


def test_a_ready_fd_is_closed_with_the_last_handle(owner):
    mine = owner.pipe()
    ready_fd = mine.reader(0).ready_fd()
    mine.drop(1)
    assert ready_fd.fd == -1

    ready_fd.close()
    ready_fd.set(True)
    assert ready_fd.fd == -1


def test_what_a_lost_reader_had_not_handed_out_comes_back_in_order(mine, theirs, other):
    reader = fetching(theirs)
    put(mine, *numbers(10))
    assert [take(theirs) for _ in range(3)] == [b"0", b"1", b"2"]
    assert len(reader._buffer) == 7
    other.die()

    assert [take(mine) for _ in range(7)] == numbers(10)[3:]


def test_a_remote_reader_reports_what_it_has_handed_out(mine, world):
    far = world.node("far", host="elsewhere")
    theirs = far.remote(mine)
    assert fetching(theirs).slot.index == -1
    put(mine, *numbers(10))
    for _ in range(3):
        take(theirs)

    until(lambda: mine.size(0) == 7)


def test_items_parked_with_one_reader_go_to_another_that_waits(mine, other, third):
    slow, quick = other.remote(mine), third.remote(mine)
    reader = fetching(slow)
    put(mine, *numbers(6))
    assert take(slow) == b"0"
    assert reader._buffer

    # what nobody had fetched first, then what came back
    assert [take(quick) for _ in range(5)] == [b"3", b"4", b"5", b"1", b"2"]
    assert not reader._buffer


def test_after_a_recall_its_reader_goes_on(mine, theirs):
    fetching(theirs)
    put(mine, *numbers(6))
    assert take(theirs) == b"0"
    taken = [take(mine, block=False) for _ in range(2)]
    taken += [take(theirs) for _ in range(3)]

    assert sorted(taken) == [b"1", b"2", b"3", b"4", b"5"]


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
    assert readable(ready_fd.fd)
    assert reader.poll(0)


def test_a_pipe_holds_its_writer_back_and_loses_nothing(owner, other):
    mine = owner.pipe()
    theirs = other.remote(mine, end=0)
    block = bytes(2**20)
    sent, more = [], []

    def send():
        for _ in range(40):
            theirs.writer(0).put(block, True, None)
            sent.append(1)

    def is_refused(how):
        # there may be room yet that the other thread had not heard of
        try:
            theirs.writer(0).put(block, *how)
        except queue.Full:
            return True
        more.append(1)
        return False

    done = in_thread(send)
    for how in ((False, None), (True, 0.01)):
        until(lambda: is_refused(how))  # noqa: B023 - it is called in this turn
    assert len(sent) < 30
    for _ in range(40 + len(more)):
        assert len(mine.reader(0).take(True, 20)) == 2**20
    done()


def test_a_writer_elsewhere_need_not_ask_for_each_item(owner, other):
    mine = owner.queue(100)
    theirs = other.remote(mine)
    put(theirs, b"0")
    writer = theirs.writer(0)
    assert writer._credit > 10
    done = in_thread(lambda: put(theirs, *numbers(500)[1:]))

    assert [int(take(mine)) for _ in range(500)] == list(range(500))
    done()


def test_credit_of_one_writer_goes_to_another_that_finds_no_room(owner, third, side):
    mine = owner.queue(10)
    idle, busy = third.remote(mine), side(mine)
    put(idle, b"0")
    assert idle.writer(0)._credit
    put(busy, *numbers(10)[1:], timeout=20)

    assert mine.size(0) == 10
    with pytest.raises(queue.Full):
        put(idle, b"x", block=False)


def test_a_put_that_is_the_last_thing_its_owner_waited_for_is_no_failure(mine, theirs, monkeypatch):
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


def test_a_put_that_finds_its_connection_broken_is_an_error(theirs, monkeypatch):

    def broken(segments):
        raise TransportError("gone")

    monkeypatch.setattr(theirs, "cast", broken)
    with pytest.raises(TransportError, match="gone"):
        put(theirs, b"1")


def test_a_put_that_was_dropped_with_its_owner_is_an_error(theirs, monkeypatch):
    writer = theirs.writer(0)
    push = writer._push

    def lost_before(**how):
        writer.fail(PeerLostError("gone"))
        return push(**how)

    monkeypatch.setattr(writer, "_push", lost_before)
    # while another thread sends, so that it is gathered
    with writer._wire, pytest.raises(PeerLostError):
        put(theirs, b"1")


def test_what_has_come_from_an_owner_that_was_lost_since_is_handed_out(owner, other, monkeypatch):
    made = owner.queue()
    theirs = other.remote(made)
    reader = theirs.reader(0)
    # asks for items without a thread that reads
    reader.ready_fd()
    until(lambda: made.states[0]._waiting)
    holding, go = threading.Event(), threading.Event()
    other.reactor.call_soon(lambda: holding.set() or go.wait(TIMEOUT))
    assert holding.wait(TIMEOUT)
    put(made, b"1")
    # a thread of nng's sends it
    assert readable(*theirs.client._link.fds)
    monkeypatch.setattr(theirs, "cast", Mock(side_effect=PeerLostError("gone")))
    reader._send(lambda: b"what was handed out")
    assert reader._error is None
    go.set()
    assert take(theirs) == b"1"
    with pytest.raises(PeerLostError):
        take(theirs)
