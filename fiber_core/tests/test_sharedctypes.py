"""Shared ctypes objects in one process: what they are, and their locks."""

import copy
import ctypes
import gc
import multiprocessing
import pickle
import threading
from multiprocessing import sharedctypes as stdlib

import pytest

import fiber
from fiber import sharedctypes
from fiber.sharedctypes import Array, RawArray, RawValue, Value, synchronized

pytestmark = pytest.mark.usefixtures("shared_runtime")


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_double)]


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


def test_values_of_classes_take_their_arguments():
    assert RawValue(ctypes.c_int, 7).value == 7
    point = RawValue(Point, 1.5, 2.5)
    assert (point.x, point.y) == (1.5, 2.5)
    assert type(point) is Point


def test_arrays_are_zeros_or_what_they_are_made_of():
    assert RawArray("i", 3)[:] == [0, 0, 0]
    assert RawArray("d", (1, 2.5))[:] == [1.0, 2.5]
    assert [one.y for one in RawArray(Point, [(1, 2), (3, 4)])] == [2, 4]
    assert RawArray("c", b"hello").value == b"hello"
    assert RawArray("u", "hello").value == "hello"
    assert len(RawArray("i", 0)) == 0
    with pytest.raises(ValueError, match="Array length must be >= 0"):
        RawArray("i", -1)


def test_a_copy_has_memory_of_its_own():
    first = RawArray(Point, [(1, 2)])
    copies = [sharedctypes.copy(first), copy.copy(first), copy.deepcopy(first)]
    first[0] = (5, 6)
    assert [(one[0].x, type(one)) for one in copies] == [(1, type(first))] * 3
    assert [x is not None for x in map(sharedctypes.local_ctypes.handle_of, copies)] == [
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


def test_a_pickle_lasts_longer_than_what_it_is_of():
    value = RawValue("i", 5)
    pickled = pickle.dumps(value)
    del value
    gc.collect()
    assert pickle.loads(pickled).value == 5


def test_instances_that_are_not_shared_are_pickled_as_ever():
    RawValue(Point)
    RawValue("i")
    plain = Point(1, 2)
    again = pickle.loads(pickle.dumps(plain))
    plain.x = 9
    assert (again.x, again.y, type(again)) == (1, 2, Point)
    assert pickle.loads(pickle.dumps(ctypes.c_int(3))).value == 3
    assert copy.copy(ctypes.c_int(3)).value == 3


def test_a_part_of_a_shared_object_keeps_its_memory_and_is_pickled_as_a_copy():
    points = RawArray(Point, [(1, 2), (3, 4)])
    part = points[1]
    again = pickle.loads(pickle.dumps(part))
    del points
    gc.collect()
    RawArray(Point, [(8, 8), (8, 8)])
    assert (part.x, again.x) == (3, 3)


def test_a_view_of_the_memory_keeps_it():
    view = memoryview(RawArray("i", [1, 2, 3]))
    gc.collect()
    RawArray("i", [9, 9, 9])
    assert view.cast("B").cast("i").tolist() == [1, 2, 3]


def test_numpy_sees_the_memory():
    np = pytest.importorskip("numpy")
    array = Array("d", range(4))
    seen = np.frombuffer(array.get_obj())
    seen += 1
    assert array[:] == [1, 2, 3, 4]
    assert (seen.flags.aligned, seen.ctypes.data % 64) == (True, 0)


def test_too_much_is_an_error_with_the_reason():
    with pytest.raises(OSError, match="no room for"):
        RawArray("b", 2**50)


# with a lock


def test_a_value_has_a_lock_that_its_thread_may_take_again():
    value = Value("i", 3)
    assert isinstance(value, sharedctypes.Synchronized)
    with value.get_lock(), value:
        value.value += 1
    assert value.acquire(timeout=1)
    value.release()
    assert value.value == value.get_obj().value == 4
    assert type(value.get_obj()) is ctypes.c_int


def test_another_thread_waits_for_the_lock():
    value = Value("i", 0)

    def add():
        for _ in range(300):
            with value.get_lock():
                value.value += 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value.value == 1200


def test_arrays_are_indexed_sliced_and_iterated_over():
    array = Array("i", range(5))
    array[1:3] = [7, 8]
    array[-1] = 9
    assert (array[0], array[1:4], list(array), len(array)) == (0, [7, 8, 3], [0, 7, 8, 3, 9], 5)
    with pytest.raises(IndexError):
        array[5]


def test_texts_have_value_and_raw():
    text = Array("c", 5)
    assert isinstance(text, sharedctypes.SynchronizedString)
    text.value = b"abc"
    assert (text.value, text.raw, text[1]) == (b"abc", b"abc\0\0", b"b")


def test_structures_have_their_fields_inherited_ones_too():
    line = Value(Line, 1, 2)
    line.x += 1
    line.ends[0].y = 4
    assert (line.x, line.y, line.ends[0].y) == (2, 2, 4)
    assert type(line).__name__ == "SynchronizedLine"
    assert type(Value(Line)) is type(line)


def test_without_a_lock_it_is_the_object_itself():
    assert type(Value("i", 3, lock=False)) is ctypes.c_int
    assert Array("i", 3, lock=False)._length_ == 3


def test_a_lock_may_be_given():
    lock = threading.Lock()
    assert Value("i", lock=lock).get_lock() is lock
    assert Array("i", 2, lock=lock).get_lock() is lock
    for make in (Value, Array):
        with pytest.raises(AttributeError, match="'notalock' has no method 'acquire'"):
            make("i", 1, lock="notalock")


def test_synchronized_wraps_what_is_not_wrapped_yet():
    value = synchronized(RawValue("d", 1.5))
    assert value.value == 1.5
    with pytest.raises(AssertionError, match="object already synchronized"):
        synchronized(value)
    assert repr(value) == "<Synchronized wrapper for c_double(1.5)>"


def test_a_pickle_of_a_wrapper_is_a_reference_to_both():
    for first in (Value("i", 3), Array("i", [3]), Array("c", b"x"), Value(Point, 1)):
        again = pickle.loads(pickle.dumps(first))
        assert type(again) is type(first)
        with first:
            assert bytes(again.get_obj()) == bytes(first.get_obj())


def test_they_are_instances_of_the_stdlibs_classes():
    assert isinstance(Value("i"), stdlib.Synchronized)
    assert isinstance(Array("i", 1), stdlib.SynchronizedArray)
    assert isinstance(Array("c", 1), stdlib.SynchronizedString)
    assert isinstance(Value(Point), stdlib.SynchronizedBase)
    assert not isinstance(multiprocessing.Value("i"), sharedctypes.Synchronized)


def test_contexts_have_them():
    context = fiber.get_context("spawn")
    assert context.Value("i", 3).value == 3
    assert context.Array("i", [3])[:] == [3]
    assert type(context.RawValue("i")) is ctypes.c_int
    assert len(context.RawArray("i", 4)) == 4


def test_the_module_has_all_that_the_stdlibs_has():
    assert set(sharedctypes.__all__) == set(stdlib.__all__)
    missing = {
        name
        for name, thing in vars(stdlib).items()
        if getattr(thing, "__module__", stdlib.__name__) == stdlib.__name__
        and not name.startswith("_")
        and not hasattr(sharedctypes, name)
        and not isinstance(thing, type(stdlib))
    }
    # a text from which it makes its properties
    assert missing == {"template"}
