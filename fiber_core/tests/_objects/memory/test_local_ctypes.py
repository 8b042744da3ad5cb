"""ctypes instances over shared memory: their layout; local, in another process, on another host."""

import copyreg
import ctypes
import gc
import pickle

import pytest

from fiber._objects import store
from fiber._objects.memory import local_ctypes
from fiber._objects.memory.heap import MemoryHandle
from fiber._objects.memory.remote_ctypes import ArrayOnAnotherHost
from wire_world import until


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_int)]


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
    mine = local_ctypes.new(Point * 2)
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
    mine = local_ctypes.new(ctypes.c_int)
    shared = local_ctypes.handle_of(mine)._object
    shared.issue(7, 0, 1)
    spelled, handle = local_ctypes.reduce(mine)[1]
    state = handle._state()
    at(other)
    theirs = local_ctypes.rebuild(spelled, MemoryHandle._load(shared.address, 0, 7, *state))
    del mine, handle
    gc.collect()
    theirs.value = 5
    assert bytes(shared.view)[0] == 5
    del theirs
    gc.collect()
    until(lambda: shared._allocation is None)


def test_a_type_of_another_size_is_refused(at, owner, other, sent):
    _, pickled = sent
    at(other)
    handle = pickle.loads(pickle.dumps(local_ctypes.handle_of(pickle.loads(pickled))))
    with pytest.raises(TypeError, match="Wide has 8 bytes here and 32 in process owner"):
        local_ctypes.rebuild(Wide, handle)


def test_array_types_are_spelled_and_named_ones_go_by_name():
    nested = (ctypes.c_short * 3) * 2
    assert local_ctypes.spell(nested) == ((ctypes.c_short, 3), 2)
    assert local_ctypes.read(local_ctypes.spell(nested)) is nested
    assert local_ctypes.spell(Named) is Named
    assert local_ctypes.spell(Named * 4) == (Named, 4)


def test_what_pickled_a_type_before_still_does_where_memory_is_not_shared(at, owner, monkeypatch):
    class Own(ctypes.Structure):
        _fields_ = [("n", ctypes.c_int)]

    monkeypatch.setitem(copyreg.dispatch_table, Own, lambda one: (int, (one.n,)))
    at(owner)
    local_ctypes.new(Own)
    assert pickle.loads(pickle.dumps(Own(4))) == 4


# -- where the parts of types are


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
def test_addresses_are_refused(ctype):
    with pytest.raises(TypeError, match="is an address in the memory of another host"):
        local_ctypes.check_portable(ctype)
