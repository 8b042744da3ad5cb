"""The conformance kit on the Kubernetes backend and its plugin.

Pods are containers of an engine of the tests' own; the API server is emulated.
"""

import contextlib

import attrs
import pytest

from cluster import Cluster
from fiber.model import Timing, Volume
from fiber.testing import BackendConformance, HostWitness, PluginConformance
from fiber_k8s.backend import K8sBackend
from fiber_k8s.config import K8sConfig
from k8s_site import set_durations


@pytest.fixture(scope="module")
def kube(kubelet):
    capacity = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    with Cluster.start(runtime=kubelet, nodes=["one"], capacity=capacity) as cluster:
        yield cluster


class ClusterWitness(HostWitness):
    """Sees the processes of pods, which are this host's; objects outlive a master that was killed."""

    def __init__(self, backend, cluster):
        self._backend = backend
        self._cluster = cluster

    def calls(self):
        return len(self._cluster.requests)

    def go_away(self):
        self._cluster.stop_api()

    def come_back(self):
        self._cluster.start_api()

    def cut_events(self):
        self._cluster.cut_watches()

    @contextlib.contextmanager
    def lost_host(self):
        set_durations(self._backend, unconfirmed=1.0)
        self._cluster.node_silent("one")
        try:
            yield
        finally:
            self._cluster.node_back("one")


@pytest.mark.timeout(300)
class TestK8sBackend(BackendConformance):
    python = "python3"
    image = "fiber-test"
    # a container takes a while on a machine that is busy with other tests
    patience = 60.0
    many = 16

    @pytest.fixture
    def backend(self, reopen, context):
        with contextlib.closing(reopen(context)) as backend:
            yield backend

    @pytest.fixture
    def configured(self, kube, kubelet):
        return {"kubeconfig": str(kube.kubeconfig), "address": kubelet.gateway}

    @pytest.fixture
    def config(self, configured):
        return K8sConfig(**configured, unschedulable_timeout=0.5)

    @pytest.fixture
    def reopen(self):
        return lambda context: K8sBackend(attrs.evolve(context, image="fiber-test"))

    @pytest.fixture
    def unreachable(self, context, kube, tmp_path):
        path = tmp_path / "kubeconfig"
        path.write_text(kube.kubeconfig.read_text().replace(kube.url, "https://127.0.0.1:9"))
        config = K8sConfig(kubeconfig=str(path))
        timing = Timing(outage=0.0)
        backend = K8sBackend(attrs.evolve(context, config=config, timing=timing))
        yield backend
        backend.close()

    @pytest.fixture
    def settings(self, configured, engine):
        variables = {f"FIBER_K8S_{key.upper()}": text for key, text in configured.items()}
        return {**variables, "FIBER_IMAGE": engine.image}

    @pytest.fixture
    def witness(self, backend, kube):
        return ClusterWitness(backend, kube)

    @pytest.fixture
    def image_context(self):
        pytest.skip("images that are built go to a registry: end_to_end/test_command_line.py")

    @pytest.fixture
    def volume(self, kube, run_id):
        name = f"kit-{run_id}"
        kube.create_claim(name)
        return Volume(source=name, path="/persistent")


class TestK8sPlugin(PluginConformance):
    module = "fiber_k8s.plugin"
    sdks = ("kubernetes", "urllib3", "websocket", "websockets", "yaml", "fiber_k8s.backend")
