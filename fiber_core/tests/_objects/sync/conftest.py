"""Nodes with stores, as for all shared objects."""

from __future__ import annotations

import pytest

from fiber._objects.address import Kind
from fiber._objects.sync.barrier import OwnedBarrier
from fiber._objects.sync.condition import OwnedCondition
from fiber._objects.sync.event import OwnedEvent
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState


@pytest.fixture
def semaphore_at(owner):
    """Makes permits that live with the owner."""

    def make(kind: Kind = Kind.LOCK, value: int = 1, maximum: int = 1, **options):
        made = OwnedSemaphore(owner.store, kind, SemaphoreState(value, maximum, **options))
        made.hold(0)
        return made

    return make


def held(made):
    made.hold(0)
    return made


@pytest.fixture
def event(owner):
    return held(OwnedEvent(owner.store))


@pytest.fixture
def condition(owner):
    return held(OwnedCondition(owner.store))


@pytest.fixture
def barrier_of(owner):
    """Makes barriers that live with the owner."""
    return lambda parties: held(OwnedBarrier(owner.store, parties))
