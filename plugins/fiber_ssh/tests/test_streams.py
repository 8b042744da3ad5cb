"""Streams into jobs of hosts that do not dial pass the conformance kit."""

import sys

import attrs
import pytest

from fiber.testing.kit.delivery import Streams
from fiber_ssh.backend import SshBackend
from fiber_ssh.plugin import CAPABILITIES


class TestStreams(Streams):
    capabilities = CAPABILITIES
    python = sys.executable

    @pytest.fixture
    def backend(self, context, config):
        reversed_ = attrs.evolve(config, reach="reversed")
        backend = SshBackend(attrs.evolve(context, config=reversed_))
        yield backend
        backend.close()
