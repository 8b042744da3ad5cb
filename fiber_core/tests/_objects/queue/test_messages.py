"""Batches of items: what is packed is unpacked, and nonsense is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.queue import messages
from fiber._objects.queue.messages import ItemWithReferences, count_to_none
from fiber._wire import codec
from fiber.exceptions import WireError

NONE = bytes(codec.pickled(None))
REFERENCES = [("abc", ("ipc:///x", "ipc:///y"), 3, 99)]
some = st.lists(
    st.one_of(st.binary(max_size=50), st.just("with_references"), st.just(b"x" * 100_000))
)


def real(one):
    return ItemWithReferences.of(REFERENCES, b"pickle") if one == "with_references" else one


def plain(item):
    return (
        (item.references(), bytes(item.pickled))
        if isinstance(item, ItemWithReferences)
        else bytes(item)
    )


def joined(batch):
    return memoryview(b"".join(messages.pack(batch)))


@pytest.mark.timeout(600)
@given(some)
def test_a_batch_arrives_as_it_was_packed(made):
    batch = [real(one) for one in made]

    assert [plain(item) for item in messages.unpack(joined(batch))] == [plain(i) for i in batch]


def test_small_items_are_copied_and_large_ones_are_not():
    large = bytes(200_000)
    segments = messages.pack([b"small", large, b"small"])
    assert any(segment is large for segment in segments)

    # small ones do not keep the message they came in
    assert [type(item) for item in messages.unpack(joined([b"a", b"b"]))] == [bytes, bytes]


@pytest.mark.parametrize(
    "batch", [[b"abc", b"de"], [ItemWithReferences.of(REFERENCES, b"p"), b"x"]]
)
def test_a_batch_cut_anywhere_is_refused(batch):
    whole = bytes(joined(batch))

    for length in range(len(whole)):
        with pytest.raises(WireError):
            messages.unpack(memoryview(whole[:length]))


def test_an_announced_number_beyond_the_batch_is_refused_before_memory_is_taken():
    with pytest.raises(WireError, match="announces 4294967295 items"):
        messages.unpack(memoryview(struct.pack("<II", 2**32 - 1, 0) + bytes(100)))


@pytest.mark.parametrize("positions", [(5,), (0, 0)])
def test_a_false_or_repeated_position_of_an_item_with_references_is_refused(positions):
    count = len(positions)
    body = struct.pack(f"<II1Q{count}I", 1, count, 0, *positions)

    with pytest.raises(WireError, match="with references"):
        messages.unpack(memoryview(body))


@pytest.mark.parametrize("listed", [b"{", b"[1]", b'[["a", 1, 2]]', b"[" * 100_000, None])
def test_tickets_that_make_no_sense_are_refused(listed):
    body = b"ab" if listed is None else struct.pack("<I", len(listed)) + listed
    with pytest.raises(WireError):
        ItemWithReferences(body).references()


@pytest.mark.parametrize(
    "back, fresh, count, upto",
    [
        ([], [b"1", b"2", NONE, b"4"], 4, 3),
        ([], [b"1", b"2", NONE], 2, 2),
        ([(7, b"1"), (9, NONE)], [b"3"], 3, 2),
        ([(7, NONE)], [NONE], 2, 1),
        ([], [b"abcd", b"2"], 2, 2),
        ([], [ItemWithReferences(NONE), b"2"], 2, 2),
    ],
    ids=["in between", "behind", "among what came back", "two", "as long", "with_references"],
)
def test_items_are_counted_up_to_a_none(back, fresh, count, upto):
    assert count_to_none(back, fresh, count) == upto
