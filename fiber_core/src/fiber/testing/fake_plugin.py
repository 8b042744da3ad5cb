"""The fake backend as a plugin module, for an entry point ``fake = fiber.testing.fake_plugin``."""

from __future__ import annotations

from collections.abc import Sequence

from fiber.abc import ResourceProvider
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo
from fiber.testing.fakes import FakePlugin

_PLUGIN = FakePlugin()


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """Offer the fake backend; each instance has a platform of its own."""
    return _PLUGIN.fiber_backends()


@hookimpl
def fiber_resource_providers() -> Sequence[ResourceProvider]:
    """Offer the fake devices."""
    return _PLUGIN.fiber_resource_providers()
