"""Conformance of the ssh backend and its plugin."""

import sys
from pathlib import Path
from typing import ClassVar

import attrs
import pytest

from fiber.testing import BackendConformance, FakeProvider, HostWitness, PluginConformance
from fiber.testing.kit.delivery import Streams
from fiber_ssh.backend import SshBackend
from fiber_ssh.config import SshConfig
from fiber_ssh.plugin import CAPABILITIES


class AlphaProvider(FakeProvider):
    """Two devices on the host alpha, none on others; they need no hardware."""

    def probe(self):
        code = (
            "import json, socket; "
            "print(json.dumps(['F-0', 'F-1'] if socket.gethostname() == 'alpha' else []))"
        )
        return ("{python}", "-I", "-S", "-c", code)


class SshWitness(HostWitness):
    """Looks at the processes of the hosts, and drops their ssh connections."""

    def __init__(self, world):
        self.world = world

    def cut_events(self):
        for host in self.world.hosts:
            host.drop_sessions()


class TestSsh(BackendConformance):
    python = sys.executable
    # longer than the lease, after which alone nothing is left of a master that was killed
    patience = 60.0
    devices: ClassVar = {"fake": 2}
    # agents see it
    notices_stops = True

    @pytest.fixture
    def config(self, config, tmp_path):
        # each test connects to all of its hosts, so these are the first two; programs have the third, too
        (tmp_path / "hosts").write_text(Path(config.hosts).read_text().partition("[gamma]")[0])
        return attrs.evolve(config, hosts=str(tmp_path / "hosts"))

    @pytest.fixture
    def context(self, context):
        # the one of this folder, which has a lease
        return attrs.evolve(context, providers={"fake": AlphaProvider()})

    @pytest.fixture
    def backend(self, opened, context):
        return opened(context)

    @pytest.fixture
    def reopen(self):
        return SshBackend

    @pytest.fixture
    def unreachable(self, opened, context):
        # nobody listens at that port of this machine
        nowhere = SshConfig(hosts="127.0.0.1", config=Path("/dev/null"), connect_timeout=1.0)
        return opened(context, config=nowhere)

    @pytest.fixture
    def settings(self, world):
        return {**world.environ(slots=32), "FIBER_LEASE": "15"}

    @pytest.fixture
    def witness(self, world):
        # the hosts share this machine's processes
        return SshWitness(world)

    def survivors(self, run_id):
        return None


class TestStreams(Streams):
    """Streams into jobs of hosts that do not dial."""

    capabilities = CAPABILITIES
    python = sys.executable

    @pytest.fixture
    def config(self, config):
        return attrs.evolve(config, reach="reversed")

    @pytest.fixture
    def backend(self, opened, context):
        return opened(context)


class TestSshPlugin(PluginConformance):
    module = "fiber_ssh.plugin"
    sdks = ("paramiko", "cryptography", "fiber_ssh.backend")
