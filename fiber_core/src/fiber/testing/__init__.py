"""For authors of plugins: conformance kits, a verified fake backend, and tiny programs.

The kits are classes of pytest tests to subclass: :class:`BackendConformance`,
:class:`PluginConformance` and :class:`ResourceProviderConformance`. They need pytest, ``pip install
fiber-core[testing]``. The fakes need no more than the core, so that jobs may import them; they pass
the kits themselves.

=============== =====================================================================
kit             the kits: their tests, a module for each subject
apps            user programs that the backend kit runs as scripts
programs        tiny programs for jobs, each an argv; and what calls an ``entry`` in a fresh Python
witness         observes jobs of a platform by other means than the backend's
report          pytest plugin: writes results as JSON, selects levels
test_installed  the kits on installed plugins, for ``fiber plugin check``
fakes           fake backend, provider and plugin, on ``fake_platform``
fake_remote     fake backend whose jobs have an environment and folder of their own
fake_batch      fake batch system: a queue on this machine, with three commands
fake_plugin     plugin with the fake backend, for an entry point
=============== =====================================================================

Names of tests in the kits are part of the interface: subclasses override a test by its name (only
with ``xfail`` and a reason), and recorded results have them. Threads: a kit's Driver has one that
reads the backend's events; the fake platform has a few for each process, and one lock.

Called by tests of plugins and of the core, and by ``fiber plugin check``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber.testing.fakes import FakeBackend, FakePlatform, FakePlugin, FakeProvider
    from fiber.testing.kit.backend import BackendConformance
    from fiber.testing.kit.plugins import PluginConformance, ResourceProviderConformance
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
    "BackendConformance": "kit.backend",
    "FakeBackend": "fakes",
    "FakePlatform": "fakes",
    "FakePlugin": "fakes",
    "FakeProvider": "fakes",
    "HostWitness": "witness",
    "PluginConformance": "kit.plugins",
    "ResourceProviderConformance": "kit.plugins",
    "Witness": "witness",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    if _HOMES[name].startswith("kit."):
        import pytest

        # before the kit is imported, so that a failing assert shows its values
        pytest.register_assert_rewrite(f"{__name__}.kit")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
