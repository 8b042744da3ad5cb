"""A value as bytes and back, in a process that has it; and where there are copies of it."""

import gc
import weakref

import attrs
import numpy as np
import pytest

from fiber._objects.blocks import copies as module
from fiber._objects.blocks.block import ValueCache, read_value, write_value
from fiber._objects.blocks.copies import Answer, Copies, UnusedCopies
from fiber._objects.memory.backing import Location
from fiber._wire import frames
from wire_world import threads


@attrs.define
class Model:
    weights: np.ndarray
    names: dict


def there_and_back(value):
    return read_value(memoryview(frames.joined(write_value(value))))


def views(array, body):
    """True where an array has no memory of its own."""
    return np.shares_memory(array, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    "value", [None, 7, "text", b"bytes", [1, {"a": (2,)}], range(3), {1, 2}, bytearray(b"x")]
)
def test_any_value_comes_back(value):
    found = there_and_back(value)
    assert (found, type(found)) == (value, type(value))


def test_arrays_are_views_that_cannot_be_written_to_wherever_they_are():
    value = {"model": Model(np.arange(6.0).reshape(2, 3), {"bias": np.ones(1)})}
    body = memoryview(frames.joined(write_value(value)))
    model = read_value(body)["model"]
    for array in (model.weights, model.names["bias"]):
        assert views(array, body)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    assert model.weights.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10)[::2],
        np.arange(12).reshape(3, 4)[:, 1:3],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 3)),
        np.array([("a", 1)], dtype=[("name", "U3"), ("n", "i4")]),
    ],
    ids=["steps", "columns", "fortran", "scalar", "empty", "records"],
)
def test_arrays_of_every_shape_come_back_as_views(array):
    found = there_and_back(array)
    assert (found.tolist(), found.dtype, found.shape) == (array.tolist(), array.dtype, array.shape)
    assert not found.flags.writeable


def test_the_value_itself_is_not_copied_before_it_is_written():
    array = np.zeros(100_000)
    segments = write_value([array, array])
    first, second = read_value(memoryview(frames.joined(segments)))
    assert first is second
    assert [len(one) for one in segments if len(one) >= array.nbytes] == [array.nbytes]
    assert views(array, segments[-1])


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"abc"),
        memoryview(bytearray(b"abcdef"))[1::2],
        memoryview(b""),
        memoryview(np.arange(6.0)),
        memoryview(np.arange(6).reshape(2, 3)),
        memoryview(np.zeros((0, 3))),
    ],
    ids=["bytes", "steps", "nothing", "doubles", "rows", "no rows"],
)
def test_a_view_comes_back_as_a_view_that_is_only_read(view):
    found = there_and_back(view)
    assert found.tolist() == view.tolist()
    assert (found.format, found.readonly, found.nbytes) == (view.format, True, view.nbytes)


class Thing:
    made = 0

    def __init__(self):
        Thing.made += 1

    def __reduce__(self):
        return Thing, ()


class Block:
    def __init__(self, value):
        self._body = memoryview(frames.joined(write_value(value)))
        self.error = None

    def body(self):
        if self.error is not None:
            raise self.error
        return self._body


def test_a_value_is_unpickled_once_for_all_handles():
    cache, before = ValueCache(Block(Thing())), Thing.made
    cells = [cache.lazy_value() for _ in range(3)]
    found = []
    with threads(3, lambda number: found.append(cells[number].value())):
        pass
    assert Thing.made == before + 1
    assert len({id(one) for one in found}) == 1


@pytest.mark.parametrize("value", [5, None])
def test_a_value_is_read_once_and_again_where_that_failed(value):
    block = Block(value)
    lazy_value = ValueCache(block).lazy_value()
    block.error = EOFError("gone")
    with pytest.raises(EOFError, match="gone"):
        lazy_value.value()
    block.error = None
    assert lazy_value.value() == value
    block.error = EOFError("gone")
    assert lazy_value.value() == value


def test_it_goes_with_its_last_holder():
    cache = ValueCache(Block(Thing()))
    first, second = cache.lazy_value(), cache.lazy_value()
    watched = weakref.ref(first.value())
    del first
    gc.collect()
    assert watched() is second.value()
    del second
    gc.collect()
    assert watched() is None


def test_one_that_is_kept_goes_when_it_is_forgotten_and_with_its_last_holder():
    cache = ValueCache(Block(Thing()), keeps=True)
    watched = weakref.ref(cache.lazy_value().value())
    gc.collect()
    lazy_value = cache.lazy_value()
    assert watched() is lazy_value.value()
    cache.forget()
    gc.collect()
    assert watched() is lazy_value.value()
    del lazy_value
    gc.collect()
    assert watched() is None


# -- where a block is on each host, what a process keeps of many


@pytest.fixture
def copies():
    return Copies()


def place(process):
    return Location(process, 1, 100, bytes(16))


def locate(copies, process, *, host="h", alone=False):
    return copies.locate(host, process, 1, alone=alone)


def fetch(process):
    return [Answer(process, 1, None)]


def test_one_of_a_host_fetches_it_and_the_others_get_that(copies):
    assert locate(copies, "a") == fetch("a")
    assert locate(copies, "b") == locate(copies, "c") == []
    assert locate(copies, "a") == fetch("a"), "it asks again"
    assert locate(copies, "far", host="other") == fetch("far")
    assert not copies.has("a")
    assert copies.add("h", "a", place("a")) == [Answer(process, 1, place("a")) for process in "bc"]
    assert copies.has("a")
    assert locate(copies, "a") == fetch("a"), "it is never told of its own copy"
    assert locate(copies, "d") == [Answer("d", 1, place("a"))]
    for process in ("a", "b", "c", "d", "far"):
        copies.remove(process)
    assert not copies.has("a")
    assert copies._hosts == {}


def test_when_the_fetching_process_is_gone_the_next_one_fetches(copies):
    locate(copies, "a"), locate(copies, "b"), locate(copies, "c"), locate(copies, "d")
    assert copies.remove("b") == []
    assert copies.remove("a") == fetch("c")
    assert copies.remove("c") == fetch("d")
    assert copies.remove("d") == []
    assert locate(copies, "e") == fetch("e")


def test_as_long_as_anybody_has_it_others_get_it(copies):
    locate(copies, "a")
    copies.add("h", "a", place("a"))
    copies.add("h", "b", place("b"))
    copies.remove("a")
    assert locate(copies, "c") == [Answer("c", 1, place("b"))]
    copies.remove("b")
    assert locate(copies, "d") == fetch("d")


@pytest.fixture
def unused(monkeypatch):
    """Has room for 100 bytes, and for an eighth of 1,600 where those are free."""
    monkeypatch.setattr(module, "_SMALL", 100)
    return UnusedCopies(lambda: 1600)


def test_what_was_used_last_stays_as_long_as_there_is_room(unused):
    assert [unused.add(name, 80) for name in "ab"] == [[], []]
    assert unused.add("a", 80) == []
    assert unused.add("c", 80) == ["b"]
    unused.remove("c")
    assert unused.add("d", 120) == []


def test_there_is_room_for_what_is_about_to_come(unused):
    unused.add("a", 80), unused.add("b", 80)
    assert unused.make_room(40) == []
    assert unused.make_room(41) == ["a"]
    assert unused.add("large", 10_000) == ["b"], "what was used last stays whatever it has"
    assert unused.make_room(10_000) == ["large"]
    unused.add("a", 80), unused.add("b", 80)
    assert unused.clear() == ["a", "b"]
    assert unused.make_room(10_000) == unused.clear() == []


def test_the_machine_is_not_asked_about_a_little(unused):
    unused._free = lambda: pytest.fail("it is called")
    unused.add("a", 50), unused.add("b", 50)
    unused.remove("a"), unused.remove("a")
    assert unused.make_room(50) == []


def test_there_are_never_too_many(unused, monkeypatch):
    monkeypatch.setattr(module, "_MANY", 3)
    assert [unused.add(n, 0) for n in range(5)] == [[], [], [], [0], [1]]
