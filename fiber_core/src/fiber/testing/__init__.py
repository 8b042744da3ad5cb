"""For authors of plugins: conformance kits, a verified fake backend, and tiny programs.

The kits need pytest, ``pip install fiber-core[testing]``; the fakes do not, so that jobs may
import them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber.testing.backend import BackendConformance
    from fiber.testing.fakes import FakeBackend, FakePlatform, FakePlugin, FakeProvider
    from fiber.testing.plugin import PluginConformance
    from fiber.testing.resource import ResourceProviderConformance
    from fiber.testing.witness import HostWitness, Witness

__all__ = [
    "BackendConformance",
    "FakeBackend",
    "FakePlatform",
    "FakePlugin",
    "FakeProvider",
    "HostWitness",
    "PluginConformance",
    "ResourceProviderConformance",
    "Witness",
]

_HOMES = {
    "BackendConformance": "backend",
    "FakeBackend": "fakes",
    "FakePlatform": "fakes",
    "FakePlugin": "fakes",
    "FakeProvider": "fakes",
    "HostWitness": "witness",
    "PluginConformance": "plugin",
    "ResourceProviderConformance": "resource",
    "Witness": "witness",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
