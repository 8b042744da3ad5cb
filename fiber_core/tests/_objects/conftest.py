"""Nodes with stores, connected for real, and gone when a test is over."""

import contextlib
import threading

import pytest

from fiber._objects import store
from fiber._objects.managed import referent
from fiber._objects.managed.referent import current_caller
from objects_world import World
from wire_world import until


@pytest.fixture
def world(folder):
    with contextlib.closing(World(folder)) as world:
        yield world


@pytest.fixture
def owner(world):
    return world.node("owner")


@pytest.fixture
def other(world, owner):
    return world.node("other")


@pytest.fixture
def third(world, owner):
    return world.node("third")


@pytest.fixture
def near(world, owner, monkeypatch):
    """Another process of the owner's host, which uses what the kernel has for both."""
    # what it pickles is for the owner
    monkeypatch.setattr(store, "current", lambda: owner.store)
    # this thread has no channel of another test
    monkeypatch.setattr(referent, "_current", threading.local())
    yield world.node("near", kernel_objects=True)
    current_caller()._finalizer()
    until(lambda: "fiber-calls-near" not in "".join(one.name for one in threading.enumerate()))


@pytest.fixture(params=["owner", "other"])
def side(request, owner, other):
    """What a process has of an object: its owner, or another one."""
    if request.param == "owner":
        return lambda made, end=0: made
    return other.remote


@pytest.fixture
def mine(owner):
    """A queue at its owner; files of other kinds have their own."""
    return owner.queue()


@pytest.fixture
def theirs(other, mine):
    """The same in another process."""
    return other.remote(mine)
