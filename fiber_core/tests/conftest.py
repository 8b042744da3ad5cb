"""Fixtures of several packages' tests."""

from __future__ import annotations

import pytest

from fiber._base.threads import Reactor


@pytest.fixture
def reactor():
    reactor = Reactor("test-reactor")
    yield reactor
    reactor.stop()
