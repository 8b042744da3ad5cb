"""One manager for the tests of a module, and its runtime, which outlives it."""

import pytest

from fiber.managers import SyncManager


@pytest.fixture(scope="module")
def manager(shared_runtime):
    with SyncManager() as started:
        yield started
