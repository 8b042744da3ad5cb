"""One manager for the tests of a module, and its runtime, which outlives it."""

from __future__ import annotations

import pytest

from fiber.managers import Manager


@pytest.fixture(scope="module")
def manager(shared_runtime):
    with Manager() as started:
        yield started
