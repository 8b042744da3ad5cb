"""Nodes with stores, as for all shared objects."""

from __future__ import annotations

import pytest

from fiber._objects.address import Kind
from fiber._objects.sync.barrier import SharedBarrier
from fiber._objects.sync.condition import SharedCondition
from fiber._objects.sync.event import SharedEvent
from fiber._objects.sync.permits import Permits, SharedPermits


@pytest.fixture
def permits_at(owner):
    """Makes permits that live with the owner."""

    def make(kind: Kind = Kind.LOCK, value: int = 1, maximum: int = 1, **options):
        made = SharedPermits(owner.store, kind, Permits(value, maximum, **options))
        made.hold(0)
        return made

    return make


def held(made):
    made.hold(0)
    return made


@pytest.fixture
def event(owner):
    return held(SharedEvent(owner.store))


@pytest.fixture
def condition(owner):
    return held(SharedCondition(owner.store))


@pytest.fixture
def barrier_of(owner):
    """Makes barriers that live with the owner."""
    return lambda parties: held(SharedBarrier(owner.store, parties))
