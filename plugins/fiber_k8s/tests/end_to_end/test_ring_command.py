"""``fiber ring run`` in pods: it goes on alone, and leaves none."""

import os
import tempfile

import pytest

from cluster import Cluster
from cluster.real import Docker
from k8s_masters import grant
from ring_command import RingCommand, fail_by_a_rank, lead_a_life

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def kubelet(engine):
    return Docker(engine)


@pytest.fixture(scope="module")
def kube(kubelet):
    with Cluster.start(runtime=kubelet, nodes=["one", "two"]) as cluster:
        grant(cluster)
        yield cluster


@pytest.fixture(params=["dialled", "by streams"])
def ring(request, kube, kubelet, engine, tmp_path):
    """The command outside of the cluster: pods reach its ring's owner, or do not."""
    address = {"FIBER_K8S_ADDRESS": kubelet.gateway} if request.param == "dialled" else {}
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fc-") as runs:
        environ = {
            **os.environ,
            **address,
            "FIBER_BACKEND": "k8s",
            "FIBER_IMAGE": engine.image,
            "KUBECONFIG": str(kube.kubeconfig),
            "XDG_RUNTIME_DIR": runs,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        yield RingCommand(environ)
    for plural in ("pods", "secrets", "leases"):
        kube.wait_for(plural, lambda things: not things)


def test_it_is_suspended_resumed_and_deleted_from_other_shells(ring):
    lead_a_life(ring)


def test_a_rank_that_fails_ends_it_with_its_code(ring):
    fail_by_a_rank(ring)
