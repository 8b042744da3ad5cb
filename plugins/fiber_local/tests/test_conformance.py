"""The conformance kit on the local backend and its plugin."""

import os
from typing import ClassVar

import attrs
import psutil
import pytest

from fiber.testing import BackendConformance, FakeProvider, HostWitness, PluginConformance
from fiber_local.backend import LocalBackend


class TestLocalBackend(BackendConformance):
    devices: ClassVar = {"fake": 2}

    @pytest.fixture
    def backend(self, opened, context):
        # devices that need no hardware, so that granting them is proven on every machine
        return opened(attrs.evolve(context, providers={"fake": FakeProvider()}))

    @pytest.fixture
    def reopen(self):
        return LocalBackend

    @pytest.fixture
    def witness(self):
        return HostWitness()

    def survivors(self, run_id):
        found = []
        for process in psutil.Process(os.getpid()).children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
            except psutil.NoSuchProcess:
                continue
        return found


class TestLocalPlugin(PluginConformance):
    module = "fiber_local.plugin"
    sdks = ("psutil", "pynng", "cryptography", "fiber_local.backend")
