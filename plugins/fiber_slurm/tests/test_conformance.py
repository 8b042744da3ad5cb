"""Conformance of the Slurm backend and its plugin, on a real Slurm."""

import sys
from types import SimpleNamespace

import attrs
import pytest

import soak
from fiber.backend_parts.batch import backend
from fiber.backend_parts.batch.poller import BatchTiming
from fiber.testing import BackendConformance, PluginConformance
from fiber.testing.kit.core import CoreApi
from fiber.testing.kit.delivery import Streams
from fiber.testing.kit.lifecycle import Lifecycle, Stops
from fiber_slurm.backend import SlurmBackend
from fiber_slurm.testing import SlurmWitness


class ClusterWitness(SlurmWitness):
    """Stops the controller besides."""

    def __init__(self, cluster):
        self.cluster = cluster

    def go_away(self):
        self.cluster.stop_controller()

    def come_back(self):
        self.cluster.start_controller()


class OnCluster:
    """What the kit needs to know of a cluster."""

    python = sys.executable
    patience = 60.0

    @pytest.fixture(autouse=True)
    def _asks_often(self, monkeypatch, request):
        """Have the kit's own backends ask this cluster four times a second: it has nothing else to do."""
        if "nothing_is_asked" in request.node.name:
            # judges the pauses that users have
            return

        def at(scale):
            return attrs.evolve(BatchTiming.at(scale), ask=0.25, ask_idle=0.5)

        monkeypatch.setattr(backend, "BatchTiming", SimpleNamespace(at=at))

    @pytest.fixture
    def reopen(self, slurm_config):
        return lambda context: SlurmBackend(attrs.evolve(context, config=slurm_config))

    @pytest.fixture
    def backend(self, opened, context, slurm_config):
        return opened(context, config=slurm_config)

    @pytest.fixture
    def unreachable(self, opened, context, slurm_config, tmp_path, cluster):
        text = cluster.conf.read_text()
        # nobody listens at that port of this machine
        port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort"))
        elsewhere = tmp_path / "slurm.conf"
        elsewhere.write_text(
            text.replace(port, "SlurmctldPort=1").replace("MessageTimeout=10", "MessageTimeout=2")
        )
        return opened(context, config=attrs.evolve(slurm_config, conf=str(elsewhere)))

    @pytest.fixture
    def settings(self, environ):
        return {name: value for name, value in environ.items() if name != "FIBER_BACKEND"}

    @pytest.fixture
    def witness(self, cluster):
        return ClusterWitness(cluster)


class TestSlurm(OnCluster, BackendConformance):
    """Batch jobs."""


#: of the kit for steps: the whole of it takes as long as that for batch jobs
_OF_STEPS = (BackendConformance,) if soak.is_full() else (Lifecycle, Stops, CoreApi)


class TestSteps(OnCluster, *_OF_STEPS):
    """Steps of an allocation in place of batch jobs."""

    @pytest.fixture
    def allocation(self, cluster, monkeypatch):
        # of the one node that has devices
        words = (f"--nodelist={cluster.nodes[0]}", "--ntasks=32", "--mem=15000", "--gres=gpu:2")
        with cluster.allocated("--nodes=1", *words) as job:
            monkeypatch.setenv("SLURM_JOB_ID", job)
            yield job

    @pytest.fixture
    def slurm_config(self, slurm_config, allocation):
        return attrs.evolve(slurm_config, by="srun")

    @pytest.fixture
    def settings(self, environ, allocation):
        more = {"FIBER_SLURM_BY": "srun", "SLURM_JOB_ID": allocation}
        return {
            name: value for name, value in {**environ, **more}.items() if name != "FIBER_BACKEND"
        }


class TestStreams(Streams):
    """Streams into jobs of nodes that do not dial."""

    python = sys.executable
    patience = 60.0

    @pytest.fixture
    def backend(self, opened, context, slurm_config):
        return opened(context, config=attrs.evolve(slurm_config, reach="streams"))


class TestSlurmPlugin(PluginConformance):
    module = "fiber_slurm.plugin"
    sdks = ("fiber_slurm.backend", "fiber.backend_parts.batch.backend")
