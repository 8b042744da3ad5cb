"""Messages of pipes: whole, of any size, in order, and what becomes of those that nobody reads."""

import errno
import os
import pickle
import queue
import resource
import select
import socket
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from fiber._objects.handle import decode
from fiber._objects.pipe import memories
from fiber._objects.pipe.packets import INLINE, Packet, PacketSocket
from fiber._objects.queue.messages import ItemWithReferences
from fiber._wire.codec import pickled_into
from waiting import until
from wire_world import in_thread

REFERENCES = [("owner", ("unix:///there",), 3, 4)]


class Array(np.ndarray):
    """An array of another type, which may be pickled in another way."""


def content(item):
    """The bytes of an item, wherever they are."""
    return bytes(item.pickled if isinstance(item, ItemWithReferences) else item)


@pytest.fixture
def receipts():
    """Descriptors of receipts, each with its item."""
    found = []
    yield found
    for descriptor, _ in found:
        os.close(descriptor)


@pytest.fixture
def ends(receipts):
    ends = PacketSocket.pair(lambda *receipt: receipts.append(receipt))
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("cause", [errno.ENOSYS, errno.EPERM])
def test_a_large_item_arrives_where_the_system_refuses_memory_without_a_name(
    ends, monkeypatch, cause
):
    def refuse(*_):
        raise OSError(cause, os.strerror(cause))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    # what is kept was made before
    monkeypatch.setattr(memories, "_kept", [])
    first, second = ends
    for body in (os.urandom(5 * 2**20), os.urandom(6 * 2**20)):
        first.put(body)
        assert content(second.take()) == body


@pytest.mark.parametrize("size", [0, 1, INLINE - 1, INLINE, INLINE + 1, 5 * 2**20])
@pytest.mark.parametrize("with_references", [False, True])
def test_an_item_of_any_size_arrives_as_it_was(ends, size, with_references):
    first, second = ends
    body = os.urandom(size)
    item = ItemWithReferences.of(REFERENCES, body) if with_references else body
    # its memory is kept for the next one, and mapped as it is used again
    for _ in range(2):
        first.put(bytes(INLINE + 1))
        content(second.take())
    descriptors = len(list(Path("/dev/fd").iterdir()))
    first.put(item)
    first.put(b"next")
    assert second.poll(0)
    found = second.take()
    assert content(found) == body
    assert not with_references or found.references() == REFERENCES
    assert second.take() == b"next"
    assert not second.poll(0.01)
    with pytest.raises(queue.Empty):
        second.take(wait=False)
    del found
    # but for the receipt of one with references
    assert len(list(Path("/dev/fd").iterdir())) <= descriptors + with_references


@pytest.mark.parametrize("is_read", [True, False])
def test_the_sender_is_told_whether_anybody_has_an_item_with_references(ends, receipts, is_read):
    first, second = ends
    first.put(ItemWithReferences.of(REFERENCES, b"body"))
    ((descriptor, item),) = receipts
    assert item.references() == REFERENCES
    assert not select.select([descriptor], [], [], 0)[0]
    if is_read:
        second.take()
    else:
        second.close()
    assert os.read(descriptor, 1) == (b"\1" if is_read else b"")


def test_the_end_comes_after_the_last_item_though_its_sender_left_some_unread(ends):
    first, second = ends
    first.put(b"never read")
    second.put(b"one")
    second.put(b"two")
    assert not first.is_hung_up
    second.close()
    assert first.is_hung_up
    assert [first.take(), first.take()] == [b"one", b"two"]
    assert first.poll(None)
    for _ in range(2):
        with pytest.raises(EOFError):
            first.take()
    with pytest.raises(BrokenPipeError, match="no process holds the other end"):
        first.put(b"three")


def test_it_ends_with_the_last_of_its_descriptors(ends):
    first, second = ends
    other = second.duplicate()
    second.close()
    other.put(b"from the other")
    assert first.take() == b"from the other"
    other.close()
    with pytest.raises(EOFError):
        first.take()


def test_a_full_one_keeps_its_sender_waiting_and_loses_nothing(ends):
    first, second = ends
    count = 2000

    def send():
        for number in range(count):
            first.put(b"%d" % number + bytes(1000))

    has_sent = in_thread(send)
    taken = [second.take() for _ in range(count)]
    has_sent()
    assert [int(item[:-1000]) for item in taken] == list(range(count))


def test_a_default_timeout_of_sockets_has_no_effect(receipts):
    socket.setdefaulttimeout(0.01)
    try:
        first, second = PacketSocket.pair(lambda *receipt: receipts.append(receipt))
        third = second.duplicate()
    finally:
        socket.setdefaulttimeout(None)
    assert all(os.get_blocking(one.fileno()) for one in (first, second, third))
    for one in (first, second, third):
        one.close()


def test_where_no_descriptor_is_left_it_says_so(ends):
    first, second = ends
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    first.put(bytes(INLINE + 1))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        with pytest.raises(OSError, match="ulimit -n") as caught:
            second.take()
        assert caught.value.errno == errno.EMFILE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_where_memory_may_not_be_that_large_it_says_so_and_the_next_one_arrives(ends):
    first, second = ends
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (INLINE, before[1]))
    try:
        with pytest.raises(OSError, match=rf"{4 * INLINE} bytes.*`ulimit -f`") as caught:
            first.put(bytes(4 * INLINE))
        assert caught.value.errno == errno.EFBIG
        first.put(b"small")
        assert second.take() == b"small"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_one_whose_number_was_taken_by_another_file_leaves_that_open(ends):
    number = ends[0].fileno()
    with open(os.devnull) as other:
        os.dup2(other.fileno(), number)
    ends[0].close()
    os.fstat(number)
    os.close(number)
    until(lambda: ends[1].is_hung_up)


class TestMemories:
    @pytest.fixture(autouse=True)
    def kept(self, monkeypatch):
        kept = []
        monkeypatch.setattr(memories, "_kept", kept)
        yield kept
        for memory in kept:
            memory.close()

    def test_memory_is_used_again_once_its_receiver_is_done_with_the_item(self, ends, kept):
        first, second = ends
        first.put(pickle.dumps(b"a" * 2 * INLINE))
        (memory,) = kept
        item = second.take()
        first.put(pickle.dumps(b"b" * 2 * INLINE))
        assert memory.is_used
        value = decode(item)
        assert not memory.is_used
        # larger than what it was, and mapped at once by both sides
        first.put(pickle.dumps(b"c" * 3 * INLINE))
        first.put(pickle.dumps(b"d" * INLINE))
        assert kept.count(memory) == 1
        assert memory._map is not None
        found = [decode(second.take()) for _ in range(3)]
        assert found == [b"b" * 2 * INLINE, b"c" * 3 * INLINE, b"d" * INLINE]
        first.put(pickle.dumps(b"e" * 3 * INLINE))
        assert decode(second.take()) == b"e" * 3 * INLINE
        assert value == b"a" * 2 * INLINE

    def test_memory_is_used_again_where_its_receiver_was_done_before_the_call_that_sent_returned(
        self, ends, kept, monkeypatch
    ):
        first, second = ends
        send = first._send

        def send_and_be_read(*arguments):
            send(*arguments)
            decode(second.take())

        monkeypatch.setattr(first, "_send", send_and_be_read)
        for _ in range(2):
            first.put(pickle.dumps(bytes(2 * INLINE)))
        assert [memory.is_used for memory in kept] == [False]

    def test_what_was_used_last_is_used_again_where_it_is_free_else_what_was_sent_before(
        self, ends, kept
    ):
        def put():
            ends[0].put(bytes(2 * INLINE))
            return kept[-1]

        first, second, third = put(), put(), put()
        content(ends[1].take())
        assert put() is first
        for _ in range(3):
            content(ends[1].take())
        assert put() is first
        assert {put(), put()} == {second, third}
        assert put() not in {first, second, third}

    def test_large_items_and_small_ones_have_memory_of_their_own(self, ends, kept):
        used = {20 * INLINE: set(), 2 * INLINE: set()}
        for _ in range(3):
            for size, memories_of_size in used.items():
                ends[0].put(bytes(size))
                memories_of_size.add(kept[-1])
            for _ in used:
                content(ends[1].take())
        large, small = used.values()
        assert (len(large), len(small), len(large | small)) == (1, 1, 2)

    def test_a_reader_that_stands_still_keeps_the_memory_of_others_from_nobody(
        self, ends, kept, monkeypatch
    ):
        monkeypatch.setattr(memories, "_MOST_LOOKS", 4)

        def put_and_read(count):
            for _ in range(count):
                ends[0].put(bytes(2 * INLINE))
            used = set(kept[-count:])
            for _ in range(count):
                content(ends[1].take())
            return used

        stuck = PacketSocket.pair(lambda *_: None)
        for _ in range(10):
            stuck[0].put(b"unread" * INLINE)
        waited_for = set(kept)
        assert len({one for _ in range(10) for one in put_and_read(1)}) == 1
        for _ in range(100 * memories._MOST_LOOKS):
            put_and_read(2)
        free = set(kept)
        assert not waited_for & free
        assert put_and_read(2) <= free
        # it is the reader's all the same
        assert [content(stuck[1].take()) for _ in range(10)] == [b"unread" * INLINE] * 10
        for one in stuck:
            one.close()

    def test_memory_is_looked_at_once_for_an_item_however_little_is_kept(
        self, ends, kept, monkeypatch
    ):
        monkeypatch.setattr(memories, "_MOST_LOOKS", 4)
        ends[0].put(bytes(2 * INLINE))
        (unread,) = kept
        for looks in (1, 2, 3):
            ends[0].put(bytes(2 * INLINE))
            assert (unread.looks, unread in kept) == (looks, True)
        ends[0].put(bytes(2 * INLINE))
        assert unread not in kept

    def test_large_arrays_are_their_receivers_own(self, ends):
        first, second = ends
        large = np.arange(INLINE // 8)
        frozen = large.copy()
        frozen.flags.writeable = False
        by_column = np.asfortranarray(large.reshape(16, -1))
        sent = [large, by_column, large[:10], frozen, bytearray(large), large.view(Array), large]
        for _ in range(2):
            first.send(pickled_into(Packet, sent))
            found = decode(second.take())
            found[0][0] = -1
            # into the same memory, which changes nothing in what came before
            first.put(pickle.dumps(bytes(100 * INLINE)))
            decode(second.take())
            assert found[0][0] == -1
            found[0][0] = sent[0][0]
            for one, other in zip(sent, found, strict=True):
                assert type(one) is type(other)
                assert np.array_equal(one, other)
        assert [one.flags.writeable for one in found[:4]] == [True, True, True, False]
        assert found[1].flags.f_contiguous
        assert found[0] is found[-1]

    def test_no_more_is_mapped_than_is_kept(self, ends, monkeypatch):
        monkeypatch.setattr(memories, "_maps", OrderedDict())
        monkeypatch.setattr(memories, "_MOST", 2)
        for size in (2, 3, 4, 5):
            ends[0].put(pickle.dumps(bytes(size * INLINE)))
            decode(ends[1].take())
            assert len(memories._maps) <= 2
        monkeypatch.setattr(memories, "LEAST_KEPT", 3 * INLINE)
        monkeypatch.setattr(memories, "most_kept", lambda: 3 * INLINE)
        ends[0].put(pickle.dumps(b"larger" * INLINE))
        assert decode(ends[1].take()) == b"larger" * INLINE
        assert not memories._maps

    def test_that_of_a_message_which_was_not_sent_is_used_again(self, ends, kept):
        first, second = ends
        second.close()
        for _ in range(3):
            with pytest.raises(BrokenPipeError):
                first.put(bytes(2 * INLINE))
        assert [memory.is_used for memory in kept] == [False]

    def test_no_more_is_kept_than_a_few_and_none_that_is_huge(self, ends, kept, monkeypatch):
        first, second = ends
        monkeypatch.setattr(memories, "_MOST", 3)
        for _ in range(5):
            first.put(bytes(2 * INLINE))
        assert len(kept) == 3
        monkeypatch.setattr(memories, "_LARGEST", 3 * INLINE)
        monkeypatch.setattr(memories, "LEAST_KEPT", 3 * INLINE)
        monkeypatch.setattr(memories, "most_kept", lambda: 3 * INLINE)
        before = set(kept)
        first.put(b"huge" * INLINE)
        assert set(kept) == before
        first.put(bytes(2 * INLINE))
        assert len(kept) == memories._FEWEST
        assert len({content(second.take())[:4] for _ in range(7)}) == 2
