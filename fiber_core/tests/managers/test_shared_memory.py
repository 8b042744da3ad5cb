"""The manager that is not offered."""

import pytest

from fiber.managers import BaseManager, SharedMemoryManager


def test_it_names_what_to_use_instead():
    with pytest.raises(NotImplementedError, match=r"use fiber\.Array or fiber\.RawArray"):
        SharedMemoryManager()
    assert issubclass(SharedMemoryManager, BaseManager)
