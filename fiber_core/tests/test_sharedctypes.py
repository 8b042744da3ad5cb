"""Shared ctypes objects: what they are, their locks, and what other processes see, on one host and on two."""

import copy
import ctypes
import gc
import multiprocessing
import os
import pickle
from multiprocessing import sharedctypes as stdlib

import pytest

import fiber
from children import be_elsewhere, finish, start
from fiber import sharedctypes
from fiber._objects import handle
from fiber._runtime import runtime
from fiber.exceptions import PeerLostError
from fiber.sharedctypes import Array, RawArray, RawValue, Value
from wire_world import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_double)]

    def sum(self):
        return self.x + self.y


class Line(Point):
    _fields_ = [("ends", Point * 2)]


class Vector(ctypes.Array):
    _type_ = ctypes.c_float
    _length_ = 3


@pytest.mark.parametrize("code", sorted(sharedctypes.typecode_to_type))
def test_a_value_of_each_typecode_is_an_instance_of_its_class(code):
    ctype = sharedctypes.typecode_to_type[code]
    value = RawValue(code)
    assert type(value) is ctype
    assert value.value == ctype().value
    value.value = sample = {"c": b"x", "u": "x"}.get(code, 3)
    assert value.value == sample


def test_values_and_arrays_of_every_kind_are_made_as_long_as_there_is_room():
    point = RawValue(Point, 1.5, 2.5)
    assert (point.sum(), type(point)) == (4.0, Point)
    assert RawArray("u", "hello").value == "hello"
    assert len(RawArray("i", 0)) == 0
    with pytest.raises(OSError, match="no room for"):
        RawArray("b", 2**50)


def test_a_copy_has_memory_of_its_own():
    first = RawArray(Point, [(1, 2)])
    copies = [sharedctypes.copy(first), copy.copy(first), copy.deepcopy(first)]
    first[0] = (5, 6)
    assert [(one[0].x, type(one)) for one in copies] == [(1, type(first))] * 3
    assert [x is not None for x in map(sharedctypes.ctypes_objects.handle_of, copies)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RawValue("i", 5),
        lambda: RawValue(Point, 1, 2),
        lambda: RawValue(Line, 1, 2, ((3, 4), (5, 6))),
        lambda: RawValue(Vector, 1, 2, 3),
        lambda: RawArray("d", range(4)),
        lambda: RawArray(ctypes.c_short * 3, 2),
        lambda: RawArray(Point, [(1, 2)]),
        lambda: RawArray("c", 10),
    ],
)
def test_a_pickle_is_a_reference(make):
    first = make()
    again = pickle.loads(pickle.dumps(first))
    assert type(again) is type(first)
    assert bytes(again) == bytes(first)
    ctypes.memset(ctypes.addressof(first), 1, ctypes.sizeof(first))
    assert bytes(again) == bytes(first) == b"\1" * ctypes.sizeof(first)


def test_instances_that_are_not_shared_are_pickled_as_ever():
    RawValue(Point)
    RawValue("i")
    plain = Point(1, 2)
    again = pickle.loads(pickle.dumps(plain))
    plain.x = 9
    assert (again.x, again.y, type(again)) == (1, 2, Point)
    assert pickle.loads(pickle.dumps(ctypes.c_int(3))).value == 3
    assert copy.copy(ctypes.c_int(3)).value == 3


def test_parts_keep_its_memory_and_are_pickled_as_copies():
    points = RawArray(Point, [(1, 2), (3, 4)])
    part = points[1]
    again = pickle.loads(pickle.dumps(part))
    del points
    gc.collect()
    RawArray(Point, [(8, 8), (8, 8)])
    assert (part.x, again.x) == (3, 3)


def test_a_view_of_the_memory_and_a_pickle_keep_it():
    view, pickled = memoryview(RawArray("i", [1, 2, 3])), pickle.dumps(RawValue("i", 5))
    gc.collect()
    RawArray("i", [9, 9, 9])
    assert view.cast("B").cast("i").tolist() == [1, 2, 3]
    assert pickle.loads(pickled).value == 5


def test_numpy_sees_the_memory():
    np = pytest.importorskip("numpy")
    array = Array("d", range(4))
    seen = np.frombuffer(array.get_obj())
    seen += 1
    assert array[:] == [1, 2, 3, 4]
    assert (seen.flags.aligned, seen.ctypes.data % 64) == (True, 0)


def test_structures_have_their_fields_inherited_ones_too():
    line = Value(Line, 1, 2)
    line.x += 1
    line.ends[0].y = 4
    assert (line.x, line.y, line.ends[0].y) == (2, 2, 4)
    assert type(line).__name__ == "SynchronizedLine"
    assert type(Value(Line)) is type(line)


@pytest.mark.parametrize(
    "method,arguments,kind",
    [
        ("Value", ("i", 3), stdlib.Synchronized),
        ("Array", ("i", [3]), stdlib.SynchronizedArray),
        ("Array", ("c", b"x"), stdlib.SynchronizedString),
        ("Value", (Point, 1), stdlib.SynchronizedBase),
    ],
)
def test_wrappers_are_the_stdlibs_and_pickles_of_them_references(method, arguments, kind):
    first = getattr(fiber.get_context("spawn"), method)(*arguments)
    assert isinstance(first, kind)
    again = pickle.loads(pickle.dumps(first))
    assert type(again) is type(first)
    with first:
        assert bytes(again.get_obj()) == bytes(first.get_obj())
    theirs = getattr(multiprocessing, method)(*arguments)
    assert not isinstance(theirs, getattr(sharedctypes, kind.__name__))


def test_they_are_pickled_also_where_the_first_lock_was_one_of_another_host(monkeypatch):
    lock = Value("i", 3).get_lock()
    # which has fewer attributes
    monkeypatch.setitem(handle._own_names, type(lock), frozenset())
    value = Value("i", 4)
    assert pickle.loads(pickle.dumps(value)).value == 4


def change(number, numbers, text, point, points, raw):
    number.value += 1
    numbers[1:3] = [n * 2 for n in numbers[1:3]]
    text.value = text.value.upper()
    point.x, point.y = point.y, 7
    points[1].x = points[0].x + 1
    points[0] = (9, 9)
    raw[0] += 1


def kinds(*things):
    return [(type(thing).__name__, type(getattr(thing, "_obj", None)).__name__) for thing in things]


def make(outbox, go):
    numbers = fiber.RawArray("i", [1, 2, 3])
    outbox.put(numbers)
    outbox.put(fiber.Value("i", 5))
    go.get()


def use_from_elsewhere(inbox, outbox):
    be_elsewhere()
    things = inbox.get()
    outbox.put(kinds(*things))
    change(*things)
    point, array = things[3], things[1]
    outbox.put((point.get_obj().sum(), list(array), array.get_obj()[:], len(array)))
    outbox.put(things[5])


def everything():
    return (
        fiber.Value("i", 1),
        fiber.Array("d", [1, 2, 3, 4]),
        fiber.Array("c", b"text"),
        fiber.Value(Point, 1, 2),
        fiber.RawArray(Point, [(1, 2), (3, 4)]),
        fiber.RawArray("q", 3),
    )


def check_changed(number, numbers, text, point, points, raw):
    assert number.value == 2
    assert numbers[:] == [1, 4, 6, 4]
    assert text.value == b"TEXT"
    assert (point.x, point.y) == (2, 7)
    assert (points[0].x, points[1].x, points[1].y) == (9, 2, 4)
    assert raw[:] == [1, 0, 0]


@pytest.mark.one_host("elsewhere they are reached by messages")
def test_on_this_host_they_are_instances_of_their_classes_and_changes_are_seen_by_all():
    things = everything()
    outbox = fiber.SimpleQueue()
    child = start(lambda: (change(*things), outbox.put(kinds(*things))))
    assert outbox.get() == kinds(*things)
    assert kinds(*things)[0] == ("Synchronized", "c_int")
    finish(child)
    check_changed(*things)


@pytest.mark.one_host("elsewhere it is a copy")
def test_where_memory_has_a_name_it_is_in_the_runs_folder_while_anybody_holds_it(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    folder = runtime.current().directory
    before = set(folder.iterdir())
    numbers, outbox = fiber.RawArray("q", 10_000), fiber.SimpleQueue()
    assert len(set(folder.iterdir()) - before) == 1
    child = start(lambda sent: outbox.put(kinds(sent)), numbers)
    assert outbox.get() == kinds(numbers)
    finish(child)
    del numbers
    until(lambda: not set(folder.iterdir()) - before)


@pytest.mark.one_host("its memory outlives it on its own host alone")
def test_what_a_child_made_is_used_here_and_its_memory_outlives_it():
    outbox, go = fiber.SimpleQueue(), fiber.SimpleQueue()
    child = start(make, outbox, go)
    numbers, value = outbox.get(), outbox.get()
    with value:
        value.value += 1
    assert value.value == 6
    go.put(None)
    finish(child)
    numbers[0] = 9
    assert numbers[:] == [9, 2, 3]
    # not so its lock, as soon as this process knows
    with pytest.raises(PeerLostError):
        until(lambda: value.value != 6)
    assert value.get_obj().value == 6


def test_on_another_host_they_have_the_same_api():
    things, inbox, outbox = everything(), fiber.SimpleQueue(), fiber.SimpleQueue()
    inbox.put(things)
    child = start(use_from_elsewhere, inbox, outbox)
    assert outbox.get() == [
        ("Synchronized", "ValueOnAnotherHost"),
        ("SynchronizedArray", "ArrayOnAnotherHost"),
        ("SynchronizedString", "TextOnAnotherHost"),
        ("SynchronizedPoint", "StructureOnAnotherHost"),
        ("ArrayOnAnotherHost", "NoneType"),
        ("ArrayOnAnotherHost", "NoneType"),
    ]
    assert outbox.get() == (9.0, [1, 4, 6, 4], [1, 4, 6, 4], 4)
    back = outbox.get()
    finish(child)
    check_changed(*things)
    # here again it is what it was
    back[1] = 5
    assert things[5][:] == [1, 5, 0]
    assert type(back) is type(things[5])
