"""Nodes with stores, connected for real, and gone when a test is over."""

import contextlib

import pytest

from objects_world import World


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
