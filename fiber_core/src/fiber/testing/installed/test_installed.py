"""The kits on the plugin in the variable ``KIT_TARGET``, with the user's settings."""

# ruff: noqa: D102  the names of fixtures say it

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import attrs
import pytest

from fiber._agent.resources.probe import probe_argv
from fiber._plugins.manager import load_plugins
from fiber.abc import Backend, ResourceProvider
from fiber.model import BackendContext, Volume
from fiber.testing import (
    BackendConformance,
    HostWitness,
    PluginConformance,
    ResourceProviderConformance,
    Witness,
)

_TARGET = json.loads(os.environ["KIT_TARGET"])
_PLUGINS = load_plugins()


def _open(context: BackendContext) -> Backend:
    from fiber._config.settings import load_config
    from fiber._plugins.backend_choice import load_backend

    info = _PLUGINS.find_backend(_TARGET["backend"])
    config = load_config({}, backend_info=info, backends=tuple(_PLUGINS.backends().values()))
    full = attrs.evolve(context, config=config.settings, providers=_PLUGINS.providers())
    return load_backend(_PLUGINS, info.name, full)


if _TARGET["module"]:

    class TestPlugin(PluginConformance):
        """The plugin."""

        module = _TARGET["module"]


if _TARGET["backend"]:

    class TestBackend(BackendConformance):
        """The backend."""

        python = _TARGET["python"] or sys.executable
        image = _TARGET["image"]

        @pytest.fixture
        def backend(self, context: BackendContext) -> Iterator[Backend]:
            backend = _open(context)
            yield backend
            backend.close()

        @pytest.fixture
        def reopen(self) -> Callable[[BackendContext], Backend]:
            return _open

        @pytest.fixture
        def witness(self) -> Witness | None:
            same_host = _PLUGINS.find_backend(_TARGET["backend"]).capabilities.same_host
            return HostWitness() if same_host else None

        @pytest.fixture
        def settings(self) -> Mapping[str, str]:
            return {"FIBER_IMAGE": _TARGET["image"]} if _TARGET["image"] else {}

        @pytest.fixture
        def volume(self) -> Volume:
            pytest.skip("which volume may be written to is told to the plugin's own tests only")

        @pytest.fixture
        def image_context(self) -> str:
            pytest.skip("what to build is told to the plugin's own tests only")


if _TARGET["kind"]:

    class TestProvider(ResourceProviderConformance):
        """The provider of devices."""

        @pytest.fixture
        def provider(self) -> ResourceProvider:
            return _PLUGINS.find_provider(_TARGET["kind"])

        @pytest.fixture(autouse=True)
        def _recorded(self, provider: ResourceProvider, monkeypatch: pytest.MonkeyPatch) -> None:
            # what this host's probe prints now is the one recording there is
            done = subprocess.run(
                probe_argv(provider), capture_output=True, text=True, check=False, timeout=60
            )
            samples = {done.stdout: len(provider.parse(done.stdout))} if not done.returncode else {}
            monkeypatch.setattr(type(self), "samples", samples)
