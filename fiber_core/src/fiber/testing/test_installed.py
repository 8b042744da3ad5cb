"""The kits on the plugin in the variable ``KIT_TARGET``, with the user's settings."""

# ruff: noqa: D102  the names of fixtures say it

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import pytest

from fiber._agent.resources import probe_argv
from fiber._plugins.manager import load_plugins
from fiber.abc import Backend, ResourceProvider
from fiber.model import BackendContext, BackendInfo, Volume
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
    from fiber._plugins.backend_choice import load_backend

    full = attrs.evolve(context, providers=_PLUGINS.providers())
    return load_backend(_PLUGINS, _info().name, full)


def _info() -> BackendInfo:
    return _PLUGINS.find_backend(_TARGET["backend"])


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
        def config(self) -> Any:
            from fiber._config.settings import load_config

            others = tuple(_PLUGINS.backends().values())
            return load_config({}, backend_info=_info(), backends=others).settings

        @pytest.fixture
        def backend(self, context: BackendContext) -> Iterator[Backend]:
            backend = _open(context)
            yield backend
            backend.close()

        @pytest.fixture
        def reopen(self) -> Callable[[BackendContext], Backend]:
            return _open

        @pytest.fixture
        def witness(self, backend: Backend) -> Witness | None:
            named = _info().witness
            if named is not None:
                witness: Witness = pkgutil.resolve_name(named)(backend)
                return witness
            return HostWitness() if _info().capabilities.same_host else None

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
