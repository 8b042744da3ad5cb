"""Items of one unit share what they hold, and nothing with items of another."""

import pickle
import struct

import pytest

from fiber._tasks import arguments
from fiber._tasks.arguments import LOCATOR, are_constant, encode, read
from fiber._tasks.shared_payload import SHARE_THRESHOLD
from fiber._wire import frames
from fiber.exceptions import WireError
from tasks_world import OutOfBand

SIZE = 5000


class Part:
    """Is pickled as part of something larger."""

    def __init__(self, of, begin):
        self.view = memoryview(of)[begin : begin + SIZE]

    def __reduce_ex__(self, protocol):
        return memoryview, (pickle.PickleBuffer(self.view),)


class Odd(int):
    """A number that can be changed."""


def nowhere(place):
    pytest.fail(f"{place} was looked for")


def round_trip(units, place=None, find=nowhere):
    apart, segments = encode(units, place)
    assert apart
    # as it arrives: nobody else has it
    return read(memoryview(bytearray(frames.joined(segments))), find)


@pytest.mark.parametrize(
    "items", [[1, 2.5, "x", b"y", None, True, 1j], [(1, "x"), (2, "y")], [()], []]
)
def test_items_of_immutable_types_are_constant(items):
    assert are_constant(items)


@pytest.mark.parametrize("items", [[[]], [1, (1,)], [(1, [2])], [((1,),)], [Odd(1)], [{}], [set()]])
def test_anything_else_may_be_changed(items):
    assert not are_constant(items)


def test_items_of_one_unit_are_one_pickle():
    shared = [1]
    apart, segments = encode([[shared, shared]])
    assert not apart
    pickled, _ = frames.unpack(memoryview(frames.joined(segments)))
    first, second = pickle.loads(pickled)
    assert first is second


def test_an_object_in_several_units_becomes_one_of_each():
    shared = []
    first, second, third = round_trip([[shared, shared], [shared]])
    assert first is second
    assert third is not first


def test_a_buffer_of_several_units_is_sent_once_and_is_one_of_each():
    array = OutOfBand(bytes(SIZE))
    _, segments = encode([[array], [array], [array]])
    assert sum(map(len, segments)) < 2 * SIZE
    first, second, third = round_trip([[array], [array], [array]])
    first[0], second[0] = 1, 2
    assert [first[0], second[0], third[0]] == [1, 2, 0]


def test_parts_of_one_object_are_not_each_other():
    whole = bytearray(range(250)) * 40
    first, second = round_trip([[Part(whole, 0)], [Part(whole, 7)]])
    assert (first[0], second[0]) == (0, 7)
    assert bytes(second) == bytes(whole[7 : 7 + SIZE])


def test_a_shared_buffer_is_mapped_for_each_unit():
    array, sent = OutOfBand(b"x" * SIZE), OutOfBand(b"y" * SIZE)
    content = {b"here": bytes(array)}
    found = round_trip(
        [[array], [sent], [array]],
        lambda raw: b"here" if raw.obj is array else None,
        lambda place: memoryview(bytearray(content[place])),
    )
    assert [bytes(one[:1]) for one in found] == [b"x", b"y", b"x"]
    found[0][0] = 0
    assert found[2][0] == ord("x")


def test_one_unit_with_nothing_large_is_as_it_always_was():
    apart, segments = encode([[OutOfBand(bytes(SIZE))]], lambda _: pytest.fail("nobody lays this"))
    assert not apart
    assert len(frames.unpack(memoryview(frames.joined(segments)))[1]) == 1


def test_views_of_parts_of_one_object_are_distinguished():
    whole = bytearray(2 * SHARE_THRESHOLD)
    views = [memoryview(whole)[begin : begin + SHARE_THRESHOLD] for begin in (0, 1)]
    references, buffers = arguments._referring(views, lambda _: pytest.fail("which part?"))
    assert references == [0, 1]
    assert buffers == views


@pytest.mark.parametrize(
    "references", [(1,), (LOCATOR + 1,), (2**31 - 1,)], ids=["a buffer", "a place", "far away"]
)
def test_references_to_nothing_are_refused(references):
    header = struct.pack(f"<{1 + len(references)}I", len(references), *references)
    body = (
        header
        + bytes(-len(header) % 16)
        + frames.joined(frames.pack(pickle.dumps([1]), [b"z" * SIZE]))
    )
    with pytest.raises(WireError, match="refer to buffer"):
        list(arguments._opened(references, [memoryview(b"")], nowhere))
    assert read(memoryview(body), nowhere) == [1]


@pytest.mark.parametrize("body", [b"", b"\x01\0\0", b"\xff" * 4 + bytes(16), b"\2\0\0\0"])
def test_nonsense_is_refused(body):
    with pytest.raises(WireError):
        read(memoryview(body), nowhere)
