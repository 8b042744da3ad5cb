"""ctypes instances over shared memory: on this host, and what stands for them on another one."""

import copy
import copyreg
import ctypes
import gc
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects import store
from fiber._objects.memory import ctypes_objects
from fiber._objects.memory.ctypes_objects import (
    ArrayOnAnotherHost,
    ctype_of,
    get,
    local_copy,
    remote_instance,
)
from fiber._objects.memory.heap import MemoryHandle
from wire_world import until

# hypothesis makes up many orders of events, which takes a busy machine long
pytestmark = pytest.mark.timeout(600)


class FakeHandle:
    """Memory that is reached by reading and writing."""

    maker = "there"

    def __init__(self, ctype):
        self.data = bytearray(ctypes.sizeof(ctype))
        self.size = len(self.data)
        self.reads = self.writes = 0

    def read(self, begin, size):
        assert 0 <= begin <= begin + size <= self.size
        self.reads += 1
        return bytes(self.data[begin : begin + size])

    def write(self, parts):
        self.writes += 1
        for begin, data in parts:
            assert 0 <= begin <= begin + len(data) <= self.size
            self.data[begin : begin + len(data)] = data


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_int)]

    unit = None

    def sum(self):
        return self.x + self.y

    @property
    def double(self):
        return 2 * self.y

    @double.setter
    def double(self, value):
        self.y = value // 2

    @classmethod
    def named(cls):
        return cls.__name__


class Whole(ctypes.c_int):
    pass


class Choice(ctypes.Union):
    _fields_ = [("number", ctypes.c_uint), ("bytes", ctypes.c_ubyte * 4)]


class Flag(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("flag", ctypes.c_bool)]


class Mixed(Flag):
    _anonymous_ = ("choice",)
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [
        ("low", ctypes.c_uint, 3),
        ("high", ctypes.c_uint, 12),
        ("choice", Choice),
        ("points", Point * 2),
        ("name", ctypes.c_char * 5),
        ("own", Whole),
        ("letter", ctypes.c_wchar),
    ]


class Big(ctypes.BigEndianStructure):
    _fields_ = [("n", ctypes.c_int), ("many", ctypes.c_short * 3), ("bits", ctypes.c_ushort, 5)]


def pair(ctype):
    """The object and what stands for another one."""
    handle = FakeHandle(ctype)
    return ctype(), remote_instance(ctype, handle), handle


def outcome(action, thing):
    try:
        return plain(action(thing))
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        return type(error)


def plain(value):
    """Something to compare, from values of either side."""
    value = local_copy(value)
    if isinstance(value, list):
        return list(map(plain, value))
    return bytes(value) if hasattr(type(value), "from_buffer") else value


def same(ctype, actions):
    local, remote, handle = pair(ctype)
    for action in actions:
        assert outcome(action, remote) == outcome(action, local)
        assert bytes(handle.data) == get(local, 0, handle.size)


numbers = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.binary(max_size=2), st.none(), st.text(max_size=2)
)
SIMPLE = [
    *(ctypes.c_byte, ctypes.c_ubyte, ctypes.c_short, ctypes.c_int, ctypes.c_uint, ctypes.c_long),
    *(ctypes.c_ulonglong, ctypes.c_float, ctypes.c_double, ctypes.c_char, ctypes.c_wchar),
    *(ctypes.c_bool, ctypes.c_int.__ctype_be__, Whole),
]


def set_value(value):
    return lambda thing: setattr(thing, "value", value)


def get_value(thing):
    return repr(thing.value)


@given(st.sampled_from(SIMPLE), st.lists(numbers, max_size=5))
def test_values(ctype, values):
    same(ctype, [act for value in values for act in (set_value(value), get_value)])


def test_a_number_that_has_unused_bytes():
    _, remote, _ = pair(ctypes.c_longdouble * 2)
    remote[1] = 2.5
    assert remote[:] == [0, 2.5]


bounds = st.one_of(st.none(), st.integers(-9, 9))
steps = st.one_of(st.none(), st.integers(-3, 3))
slices = st.builds(slice, bounds, bounds, steps)
indices = st.one_of(st.integers(-9, 9), slices)


@st.composite
def array_actions(draw):
    index = draw(indices)
    kind = draw(st.sampled_from(["get", "set", "length", "all"]))
    if kind == "length":
        return len
    if kind == "all":
        return lambda thing: repr(list(thing))
    if kind == "get":
        return lambda thing: repr(thing[index])
    value = draw(st.integers(-9, 300) if isinstance(index, int) else st.lists(numbers, max_size=6))
    if isinstance(index, slice) and draw(st.booleans()):
        # of the length that fits
        count = len(range(6)[index]) if index.step != 0 else 1
        value = [draw(st.integers(0, 127)) for _ in range(count)]

    def put(thing):
        thing[index] = value

    return put


@given(
    st.sampled_from([t for t in SIMPLE if t is not Whole]), st.lists(array_actions(), max_size=6)
)
def test_arrays(ctype, actions):
    # an item that does not fit may leave those before it written where the array is; not so here
    local, remote, handle = pair(ctype * 6)
    for action in actions:
        expected, found = outcome(action, local), outcome(action, remote)
        assert found == expected
        if isinstance(expected, type):
            handle.data[:] = get(local, 0, handle.size)
        assert bytes(handle.data) == get(local, 0, handle.size)


texts = st.one_of(st.binary(max_size=8), st.text(max_size=8), st.integers())


@given(
    st.sampled_from([ctypes.c_char, ctypes.c_wchar]),
    st.lists(st.tuples(st.sampled_from(["value", "raw"]), texts), max_size=6),
)
def test_texts(ctype, values):
    actions = []
    for name, value in values:
        actions.append(lambda thing, name=name, value=value: setattr(thing, name, value))
        actions += [get_value, lambda thing: thing.raw, lambda thing: thing[1:4]]
    if ctype is ctypes.c_wchar:
        # no such attribute; it would not be shared
        actions = [act for act in actions if act is get_value]
        actions += [set_value(value) for name, value in values if name == "value"]
    same(ctype * 6, actions)


@st.composite
def mixed_actions(draw):
    name = draw(
        st.sampled_from(["flag", "low", "high", "number", "letter", "name", "points", "bytes"])
    )
    value = draw(st.one_of(st.integers(-9, 5000), st.binary(max_size=6), st.text(max_size=1)))
    index = draw(st.integers(-3, 2))
    x = draw(st.floats(allow_nan=False))
    return draw(
        st.sampled_from(
            [
                lambda thing: setattr(thing, name, value),
                lambda thing: plain(getattr(thing, name)),
                lambda thing: setattr(thing.points[index], "x", x),
                lambda thing: thing.points[index].x,
                lambda thing: setattr(thing.points[index], "y", value),
                lambda thing: thing.points[index].sum(),
                lambda thing: thing.points.__setitem__(index, (x, 3)),
                lambda thing: thing.points.__setitem__(0, thing.points[1]),
                lambda thing: thing.bytes.__setitem__(index, value),
                lambda thing: setattr(thing, "points", (Point * 2)((x, 1), (x, 2))),
                lambda thing: setattr(thing.own, "value", value),
                lambda thing: thing.own.value,
                lambda thing: [plain(one) for one in thing.points],
            ]
        )
    )


@given(st.lists(mixed_actions(), max_size=10))
def test_structures(actions):
    same(Mixed, actions)


@given(st.lists(st.integers(-40000, 40000), min_size=3, max_size=3), st.integers(0, 40))
def test_structures_of_the_other_byte_order(values, bits):
    same(
        Big,
        [
            lambda thing: setattr(thing, "n", values[0]),
            lambda thing: setattr(thing, "bits", bits),
            lambda thing: thing.many.__setitem__(slice(None), values),
            lambda thing: (thing.n, thing.bits, thing.many[1], thing.many[:]),
        ],
    )


def test_methods_and_properties_of_the_class_see_it_as_self():
    local, remote, _ = pair(Point)
    remote.double = 8
    remote.x = 0.5
    assert (remote.y, remote.double, remote.sum(), remote.named()) == (4, 8, 4.5, "Point")
    assert remote.unit is None
    with pytest.raises(AttributeError, match="'Point' object has no attribute 'z'"):
        remote.z  # noqa: B018
    with pytest.raises(AttributeError, match="'z' is no field of Point"):
        remote.z = 1
    assert ctype_of(remote) is ctype_of(local) is Point


def test_an_array_is_read_and_written_in_one_message():
    _, remote, handle = pair(ctypes.c_int * 1000)
    remote[:] = range(1000)
    assert list(remote)[-1] == 999
    assert np.asarray(remote).sum() == sum(range(1000))
    assert (handle.reads, handle.writes) == (2, 1)


def test_there_is_no_buffer_and_the_error_has_advice():
    _, remote, _ = pair(ctypes.c_double * 4)
    match = "not 'ArrayOnAnotherHost'"
    if sys.version_info >= (3, 12):
        match = "no buffer of this c_double_Array_4: .* of process there"
    for use in (np.frombuffer, memoryview):
        with pytest.raises(TypeError, match=match):
            use(remote)
    with pytest.raises(TypeError, match="no buffer of this c_double_Array_4: .* of process there"):
        np.asarray(remote, copy=False)


def test_addresses_are_refused():
    class Named(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("number", ctypes.c_int)]

    _, remote, _ = pair(Named)
    remote.number = 3
    assert remote.number == 3
    with pytest.raises(TypeError, match="c_char_p is an address in the memory of another host"):
        remote.name  # noqa: B018
    with pytest.raises(TypeError, match="c_char_p is an address in the memory of another host"):
        remote.name = b"x"
    with pytest.raises(TypeError, match="is an address"):
        remote_instance(ctypes.POINTER(ctypes.c_int) * 2, FakeHandle(ctypes.c_int))[0]


def test_a_copy_or_a_pickle_of_a_part_has_memory_of_its_own():
    # also of a part that is as large as the whole
    _, remote, handle = pair(Point * 1)
    remote[0] = (0.5, 7)
    made = [do(remote[0]) for do in (copy.copy, copy.deepcopy, pickle.dumps)]
    made[2] = pickle.loads(made[2])
    assert handle.reads == 3
    remote[0].y = 4
    assert [(type(one), one.x, one.y) for one in made] == [(Point, 0.5, 7)] * 3


def test_its_text_names_what_it_is_and_where():
    _, remote, handle = pair(ctypes.c_int)
    assert repr(remote) == "<c_int in the memory of process there>"
    assert handle.reads == 0


class Wide(ctypes.Structure):
    _fields_ = [("x", ctypes.c_longlong)]


class Named(ctypes.Array):
    _type_ = ctypes.c_int
    _length_ = 2


@pytest.fixture
def at(monkeypatch):
    """Be a node's process: ``at(node)``."""

    def be(node):
        monkeypatch.setattr(store, "current", lambda: node.store)

    return be


@pytest.fixture
def sent(owner, at):
    """An array of the owner's, and a pickle of it."""
    at(owner)
    mine = ctypes_objects.new(Point * 2)
    return mine, pickle.dumps(mine)


def test_what_comes_from_another_host_has_its_memory_where_that_is(world, owner, other, at, sent):
    mine, pickled = sent
    at(world.node("far", host="another"))
    again = pickle.dumps(pickle.loads(pickled))
    at(other)
    theirs = pickle.loads(again)
    mine[0].y = 3
    assert (type(theirs), theirs[0].y) == (type(mine), 3)
    at(owner)
    assert ctypes.addressof(pickle.loads(again)) == ctypes.addressof(mine)


def test_where_the_memory_cannot_be_mapped_it_is_reached_by_messages(other, at, monkeypatch, sent):
    mine, pickled = sent
    at(other)
    monkeypatch.setattr("fiber._objects.memory.heap.map_arena", lambda *_: None)
    theirs = pickle.loads(pickled)
    theirs[0] = (1, 2)
    assert (type(theirs), mine[0].y) == (ArrayOnAnotherHost, 2)


def test_the_block_is_free_once_no_instance_is_left_anywhere(owner, other, at):
    at(owner)
    mine = ctypes_objects.new(ctypes.c_int)
    shared = ctypes_objects.handle_of(mine)._object
    shared.issue(7, 0, 1)
    spelled, handle = ctypes_objects.reduce(mine)[1]
    state = handle._state()
    at(other)
    theirs = ctypes_objects.rebuild(spelled, MemoryHandle._load(shared.address, 0, 7, *state))
    del mine, handle
    gc.collect()
    theirs.value = 5
    assert bytes(shared.view)[0] == 5
    del theirs
    gc.collect()
    until(lambda: shared._allocation is None)
    at(owner)
    assert ctypes_objects.handle_of(ctypes_objects.new(ctypes.c_int))._object.begin == shared.begin


def test_a_type_of_another_size_is_refused(at, owner, other, sent):
    _, pickled = sent
    at(other)
    handle = pickle.loads(pickle.dumps(ctypes_objects.handle_of(pickle.loads(pickled))))
    with pytest.raises(TypeError, match="Wide has 8 bytes here and 32 in process owner"):
        ctypes_objects.rebuild(Wide, handle)


def test_array_types_are_spelled_and_named_ones_go_by_name():
    nested = (ctypes.c_short * 3) * 2
    assert ctypes_objects.spell(nested) == ((ctypes.c_short, 3), 2)
    assert ctypes_objects.read(ctypes_objects.spell(nested)) is nested
    assert ctypes_objects.spell(Named) is Named
    assert ctypes_objects.spell(Named * 4) == (Named, 4)


def test_what_pickled_a_type_before_still_does_where_memory_is_not_shared(at, owner, monkeypatch):
    class Own(ctypes.Structure):
        _fields_ = [("n", ctypes.c_int)]

    monkeypatch.setitem(copyreg.dispatch_table, Own, lambda one: (int, (one.n,)))
    at(owner)
    ctypes_objects.new(Own)
    assert pickle.loads(pickle.dumps(Own(4))) == 4


@pytest.mark.parametrize(
    "ctype",
    [
        ctypes.c_char_p,
        ctypes.c_wchar_p,
        ctypes.py_object,
        ctypes.POINTER(ctypes.c_int),
        ctypes.CFUNCTYPE(None),
    ],
)
def test_types_that_are_addresses_are_refused(ctype):
    with pytest.raises(TypeError, match="is an address in the memory of another host"):
        ctypes_objects.check_portable(ctype)
