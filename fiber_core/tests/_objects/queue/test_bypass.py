"""A writer that sends items to a reader itself, and a copy of each to the owner: what others notice of it."""

import queue
from unittest.mock import Mock

import pytest

from fiber._objects.protocol import Notice, Op
from fiber._objects.queue import bypass_socket
from fiber._objects.queue.bypass import Bypass
from fiber._objects.queue.bypass_socket import ReadingEnd
from fiber._objects.queue.progress import ProgressSlot
from fiber._objects.queue.reader import RemoteReader
from fiber._objects.queue.remote_channel import RemoteWriter
from objects_world import put, take
from wire_world import in_thread, readable, until


@pytest.fixture
def owner(world):
    return world.node("owner", kernel_objects=True)


@pytest.fixture
def made(owner):
    return owner.queue()


@pytest.fixture
def bypass(made):
    return made.states[0].bypass


@pytest.fixture
def writer(world, made):
    return world.node("writer", kernel_objects=True).remote(made)


@pytest.fixture
def reader(world, made):
    return world.node("reader", kernel_objects=True).remote(made)


def numbers(first, end):
    return [b"%d" % number for number in range(first, end)]


def pass_one(made, writer, reader, number):
    """One item to a reader that waits for it."""
    got = in_thread(lambda: take(reader))
    until(lambda: made.states[0]._waiting or made.states[0].bypass.is_open)
    put(writer, b"%d" % number)
    assert got() == b"%d" % number


@pytest.fixture
def count(made, bypass, writer, reader):
    """Number of items that were passed one by one, until it was worth a bypass."""
    number = 0
    while not bypass.is_open:
        # each one that a busy machine is too slow for is offered again after twice as many
        assert number < 30_000
        pass_one(made, writer, reader, number)
        number += 1
    return number


def test_items_go_by_it_in_order_and_count_until_they_are_handed_out(
    made, bypass, writer, reader, count
):
    put(writer, *numbers(count, count + 10))
    assert writer.size(0) == 10
    assert [take(reader) for _ in range(10)] == numbers(count, count + 10)
    assert writer.size(0) == reader.size(0) == 0
    assert bypass.is_open


@pytest.fixture(params=["owner", "third"])
def another(request, made, world):
    """The queue as the owner or a third process has it."""
    if request.param == "owner":
        return made
    return world.node("third", kernel_objects=True).remote(made)


def test_whoever_else_asks_gets_what_was_not_handed_out(bypass, writer, reader, count, another):
    put(writer, *numbers(count, count + 5))
    assert take(reader) == b"%d" % count
    assert [take(another) for _ in range(4)] == numbers(count + 1, count + 5)
    assert not bypass.is_open

    put(writer, b"behind it")
    assert take(reader) == b"behind it"


def test_what_others_put_comes_too(writer, reader, count, another):
    got = in_thread(lambda: take(reader))
    put(another, b"of another")
    assert got() == b"of another"
    put(writer, b"as before")
    assert take(reader) == b"as before"


def test_a_large_item_keeps_its_place(made, bypass, writer, reader, count):
    large = bytes(bypass_socket.LARGEST + 1)
    put(writer, b"before", large, b"behind")
    assert [take(reader) for _ in range(3)] == [b"before", large, b"behind"]


def test_more_than_a_socket_takes_is_handed_out_in_order(made, bypass, writer, reader, count):
    put(writer, *numbers(count, count + 3000))
    assert [take(reader) for _ in range(3000)] == numbers(count, count + 3000)


@pytest.mark.parametrize("block,timeout", [(False, None), (True, 0.01), (True, -1)])
def test_an_empty_queue_raises_empty(made, bypass, writer, reader, count, block, timeout):
    with pytest.raises(queue.Empty):
        take(reader, timeout, block)
    put(writer, b"1")
    assert take(reader) == b"1"


def test_what_an_interrupt_lost_comes_again(made, bypass, writer, reader, count, monkeypatch):
    receive = ReadingEnd.receive

    def interrupted(*given):
        if receive(*given) is not None:
            raise KeyboardInterrupt

    put(writer, b"1", b"2")
    with monkeypatch.context() as patch:
        patch.setattr(ReadingEnd, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            take(reader)
    assert [take(reader), take(reader)] == [b"1", b"2"]


def test_a_descriptor_is_readable_while_there_are_items(made, bypass, writer, reader, count):
    ready_fd = reader.reader(0).ready_fd()
    put(writer, b"1")
    assert readable(ready_fd.fd)
    assert take(reader) == b"1"
    assert not bypass.is_open


def test_a_reader_that_is_gone_gives_all_back(made, bypass, writer, reader, count, world):
    put(writer, *numbers(count, count + 3))
    assert take(reader) == b"%d" % count
    world.nodes[-1].die()
    assert [take(made), take(made)] == numbers(count + 1, count + 3)


def test_what_a_writer_that_is_gone_has_put_is_handed_out(
    made, bypass, writer, reader, count, world
):
    put(writer, b"1", b"2")
    next(one for one in world.nodes if one.ident == "writer").die()
    assert [take(reader), take(reader)] == [b"1", b"2"]
    put(made, b"3")
    assert take(reader) == b"3"


def test_what_is_in_it_is_handed_out_though_the_owner_is_gone(
    made, bypass, writer, reader, count, owner
):
    put(writer, b"1", b"2")
    owner.die()
    until(lambda: reader.is_lost)
    assert [take(reader), take(reader)] == [b"1", b"2"]
    with pytest.raises(EOFError):
        take(reader)


@pytest.mark.parametrize("count, is_closed", [(0, False), (1, True)])
def test_items_put_together_end_one_that_an_item_went_through(count, is_closed):
    remote = Mock(shape=Mock(directions=[Mock(maxsize=0)]))
    writer, end = RemoteWriter(remote, 0), Mock(count=count)
    end.is_quick.return_value = False
    writer.keep_bypass(end)
    writer.put(b"1", block=True, timeout=None)
    remote.cast.assert_called_once()
    assert end.close.called == is_closed


def test_a_reader_whose_end_comes_late_asks_the_owner_once_it_has_left():
    remote = Mock(shape=Mock(directions=[Mock(maxsize=0)]), client=None)
    reader = RemoteReader(remote, 0, ProgressSlot.private(), 1)
    sent = remote.cast.call_args_list
    reader._changed = Mock(wraps=reader._changed)
    got = in_thread(lambda: take(Mock(reader=lambda _: reader)))
    until(lambda: sent)
    stale = Mock(number=1, **{"receive.return_value": b"stale"})
    reader.keep_bypass(stale)
    waits = reader._changed.wait.call_count

    reader.on_bypass(2, 1, 1)

    # it waits for what gives it back, or has asked already
    until(lambda: reader._changed.wait.call_count > waits or len(sent) > 1)
    remote.submit.call_args.args[0]()
    until(lambda: len(sent) == 3)
    assert [call.args[0][0][0] for call in sent] == [Op.REQUEST, Op.GIVE_BACK, Op.REQUEST]
    reader.on_answer(Notice.ITEMS, False, 1, [b"fresh"])
    assert got() == b"fresh"


def test_without_a_descriptor_there_is_none(made, bypass, writer, reader, monkeypatch):
    monkeypatch.setattr(bypass_socket, "Inbox", Mock(side_effect=OSError))
    for number in range(50):
        pass_one(made, writer, reader, number)
    assert bypass.number
    assert not bypass.is_open


def test_one_that_carried_little_is_offered_again_later_each_time():
    bypass, waited = Bypass(), []
    for _ in range(3):
        count = 1
        while not bypass.is_due("writer", "reader"):
            count += 1
        waited.append(count)
        bypass.offer("writer", "reader")
        bypass.open(0, lambda: (0, 0, 0))
        bypass.end(0)
    assert waited == [32, 64, 128]


def test_the_end_of_the_owner_waits_until_all_is_handed_out(
    made, bypass, writer, reader, count, owner
):
    put(writer, b"1", b"2")
    writer.sync()
    ended = in_thread(owner.close)
    assert [take(reader), take(reader)] == [b"1", b"2"]
    ended()
