"""Large items of queues between processes of one host: in memory, and in messages where that cannot be."""

import contextlib
import os
import resource
import socket
import sys
from collections import OrderedDict
from pathlib import Path
from unittest.mock import Mock

import pytest

from fiber._objects.handle import decode
from fiber._objects.pipe import memories
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.queue import descriptor_stream
from fiber._objects.queue.channel import DESCRIPTOR_STREAM
from fiber._objects.queue.messages import MemoryReference
from fiber._wire.reading import Reading
from fiber.exceptions import PeerLostError, WireError
from objects_world import fetching
from waiting import until
from wire_world import in_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no memfds")

SIZE = memories.LARGE + 1


@pytest.fixture(autouse=True)
def _memories(monkeypatch):
    """Kept memory of other tests is not for these, and none of these is left."""
    kept = []
    monkeypatch.setattr(memories, "_kept", kept)
    monkeypatch.setattr(memories, "_maps", OrderedDict())
    yield
    for memory in kept:
        memory.close()


@pytest.fixture
def made(world):
    """A queue whose owner has what the kernel has for its host."""
    return world.node("owner", kernel_objects=True).queue()


@pytest.fixture
def node(world):
    return lambda ident: world.node(ident, kernel_objects=True)


@pytest.fixture
def writer(node, made):
    return node("writer").remote(made)


def large(number):
    return bytes([number]) * SIZE


def put(side, *values):
    for value in values:
        assert side.takes_memory() or side._store.host != "elsewhere"
        side.writer(0).put(descriptor_stream.encoded(value), True, None)


def get(side, timeout=20):
    return decode(side.reader(0).take(True, timeout))


def reading(node, made, ident):
    """A reader that has its stream."""
    remote = node(ident).remote(made)
    assert remote.takes_memory()
    until(
        lambda: any(
            peer.state[DESCRIPTOR_STREAM].is_open
            for peer in made._seen
            if DESCRIPTOR_STREAM in peer.state
        )
    )
    return remote


def in_memory():
    """Number of items in memory in this process, that of all nodes."""
    return len(memories._items)


def descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def test_large_and_small_ones_keep_their_order_and_nobody_copies_them_on_their_way(
    node, made, writer
):
    reader = reading(node, made, "reader")
    assert writer.takes_memory()
    before = descriptors()
    put(writer, large(1), "small", large(2), large(3))
    until(lambda: made.size(0) == 4)
    assert in_memory() == 3
    first = fetching(reader).take(True, None)
    assert type(first) is ItemInMemory
    assert decode(first) == large(1)
    assert [get(reader) for _ in range(3)] == ["small", large(2), large(3)]
    # the owner keeps what was delivered until the reader says that it has handed it out
    reader.reader(0).report()
    del first
    until(lambda: not in_memory())
    assert len(memories._kept) == 3
    assert not any(memory.is_used for memory in memories._kept)
    put(writer, large(4))
    assert get(reader) == large(4)
    assert len(memories._kept) <= 3, "memory is used again"
    reader.reader(0).report()
    until(lambda: not in_memory())
    # one more each where Python maps by one of its own
    assert descriptors() <= before + 2 * len(memories._kept) + len(memories._maps)


def test_who_waits_for_one_at_the_owner_leaves_all_reading_to_the_handler_thread(
    made, writer, monkeypatch
):
    for number in range(2):
        put(writer, large(number))
        assert get(made) == large(number)
    monkeypatch.setattr(Reading, "wait", Mock(side_effect=AssertionError))
    wait = in_thread(get, made)
    until(lambda: made.states[0]._waiting)
    put(writer, large(3))
    assert wait() == large(3)


@pytest.mark.parametrize("how", ["dies", "gives back"])
def test_those_that_a_reader_did_not_hand_out_go_to_another(world, node, made, how):
    reader, other = reading(node, made, "reader"), reading(node, made, "other")
    put(made, *map(large, range(4)))
    assert decode(fetching(reader).take(True, None)) == large(0)
    if how == "dies":
        next(one for one in world.nodes if one.ident == "reader").die()
    assert sorted(get(other) for _ in range(3)) == [large(1), large(2), large(3)]


def test_what_a_writer_has_put_stays_when_it_dies(world, made, writer):
    put(writer, large(1), large(2))
    # what is still in buffers of the transport dies with it
    until(lambda: made.size(0) == 2)
    next(one for one in world.nodes if one.ident == "writer").die()
    assert [get(made), get(made)] == [large(1), large(2)]


def test_a_reader_still_gets_what_it_has_when_the_owner_is_gone(world, node, made):
    reader = reading(node, made, "reader")
    put(made, large(1), large(2))
    assert decode(fetching(reader).take(True, None)) == large(1)
    next(one for one in world.nodes if one.ident == "owner").die()
    assert get(reader) == large(2)
    with pytest.raises(PeerLostError):
        get(reader)


def test_the_first_one_that_comes_in_a_message_makes_the_stream_for_the_next(node, made):
    reader = node("reader").remote(made)
    put(made, large(1))
    assert get(reader) == large(1)
    until(
        lambda: any(
            getattr(peer.state.get(DESCRIPTOR_STREAM), "is_open", False) for peer in made._seen
        )
    )
    put(made, large(2))
    assert type(reader.reader(0).take(True, None)) is ItemInMemory


def test_a_stream_is_there_before_its_owner_is_told_that_it_may_send_by_it(node, made, monkeypatch):
    reader = node("reader").remote(made)
    owner, there = reader._owner, []
    cast = owner.cast

    def told(*message):
        there.append(owner.descriptor_stream is not None)
        cast(*message)

    monkeypatch.setattr(owner, "cast", told)
    assert reader.takes_memory()
    assert there == [True]


def test_a_reference_without_its_item_is_never_taken_for_one():
    with pytest.raises(WireError, match="no stream from its sender"):
        decode(MemoryReference.to(7, SIZE))


@pytest.mark.parametrize("options", [{"host": "elsewhere"}, {"kernel_objects": False}])
def test_who_cannot_have_descriptors_gets_and_puts_bytes(world, made, options):
    side = world.node("far", **{"kernel_objects": True, **options}).remote(made)
    put(made, large(1))
    assert not side.takes_memory()
    assert type(side.reader(0).take(True, None)) is not ItemInMemory
    side.writer(0).put(descriptor_stream.encoded(large(2)), True, None)
    assert get(made) == large(2)


def test_a_reader_whose_progress_is_not_seen_gets_bytes(node, made):
    """It may have used what would be given to another one when it dies."""
    reader = reading(node, made, "reader")
    made._seen.clear()
    put(made, large(1))
    assert type(reader.reader(0).take(True, None)) is not ItemInMemory


def test_no_more_are_in_memory_than_there_are_descriptors_for(made, writer, monkeypatch):
    monkeypatch.setattr(memories, "_ITEMS", 2)
    put(writer, *map(large, range(5)))
    until(lambda: made.size(0) == 5)
    assert in_memory() <= 2
    assert [get(made) for _ in range(5)] == [large(number) for number in range(5)]


@contextlib.contextmanager
def no_descriptor_left():
    """As many descriptors as this process may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(256, taken[0] + 1), before[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_where_no_descriptor_is_left_items_arrive_all_the_same(made, writer):
    writer.takes_memory()
    items = [descriptor_stream.encoded(large(number)) for number in range(3)]
    with no_descriptor_left():
        for item in items:
            writer.writer(0).put(item, True, None)
        del item, items[:]
        until(lambda: made.size(0) == 3)
        assert [get(made) for _ in range(3)] == [large(number) for number in range(3)]


def test_where_no_descriptor_is_left_for_memory_a_value_is_pickled_to_bytes():
    with no_descriptor_left():
        assert type(descriptor_stream.encoded(large(3))) is not ItemInMemory


def test_where_memory_may_not_be_that_large_a_value_is_pickled_to_bytes():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (memories.LARGE // 2, before[1]))
    try:
        item = descriptor_stream.encoded(large(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert type(item) is not ItemInMemory
    assert decode(item) == large(3)


class TestLanes:
    @pytest.fixture
    def stream(self):
        here, there = descriptor_stream.DescriptorStream.pair()
        yield here, there
        here.close()
        there.close()

    def test_one_that_is_full_has_copies(self, stream):
        here, _ = stream
        item = descriptor_stream.encoded(large(1))
        sent = [here.send_items([item])[0] for _ in range(2000)]
        kinds = [type(one) is MemoryReference for one in sent]
        assert 0 < kinds.index(False) < 2000
        assert decode(sent[-1]) == large(1)

    def test_references_may_come_in_another_order_and_some_never(self, stream):
        here, there = stream
        other = descriptor_stream.DescriptorStream(there.detach())
        items = [descriptor_stream.encoded(large(number)) for number in range(5)]
        references = here.send_items(items)
        found = other.receive_items([references[3], "small", references[1]])
        assert [decode(found[0]), found[1], decode(found[2])] == [large(3), "small", large(1)]
        here.close()
        assert decode(other.receive_items([references[4]])[0]) == large(4)
        other.close()

    @pytest.mark.parametrize("what", ["nothing", "no descriptor", "less memory"])
    def test_a_reference_without_its_item_is_an_error(self, stream, what):
        here, there = stream
        if what == "no descriptor":
            there.send(descriptor_stream._HEAD.pack(1, 10))
        if what == "less memory":
            with open(os.devnull) as file:
                socket.send_fds(there, [descriptor_stream._HEAD.pack(1, 10)], [file.fileno()])
        with pytest.raises(WireError, match="did not come|0 descriptors|has fewer"):
            here.receive_items([MemoryReference.to(1, 10)])

    def test_a_malformed_reference_is_an_error(self):
        with pytest.raises(WireError, match="has 3 bytes"):
            MemoryReference(b"abc").fields()


def test_a_value_that_is_not_large_after_all_is_no_item_in_memory(made):
    class Pretender:
        nbytes = SIZE

        def __reduce__(self):
            return int, ()

    assert memories.is_larger((Pretender(),), memories.LARGE)
    assert decode(descriptor_stream.encoded(Pretender())) == 0
