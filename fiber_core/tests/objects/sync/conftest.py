"""Nodes with stores, as for all shared objects."""

from __future__ import annotations

import pytest

from fiber.objects.address import Kind
from fiber.objects.sync.permits import Permits
from fiber.objects.sync.shared_permits import SharedPermits


@pytest.fixture
def permits_at(owner):
    """Makes permits that live with the owner."""

    def make(kind: Kind = Kind.LOCK, value: int = 1, maximum: int = 1, **options):
        made = SharedPermits(owner.store, kind, Permits(value, maximum, **options))
        made.hold(0)
        return made

    return make
