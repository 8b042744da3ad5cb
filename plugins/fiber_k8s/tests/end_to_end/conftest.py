"""Fixtures: a cluster whose pods are containers, and masters on it.

A module has nodes of its own by the constants ``NODES`` and ``CAPACITY``.
"""

import pytest

from cluster import Cluster
from k8s_masters import Masters, grant


@pytest.fixture(scope="module")
def kube(request, kubelet):
    """A cluster with a service account that has the least rights, from outside it too."""
    nodes = getattr(request.module, "NODES", ["one"])
    capacity = {"cpu": "64", "memory": "64Gi", **getattr(request.module, "CAPACITY", {})}
    with Cluster.start(runtime=kubelet, nodes=nodes, capacity=capacity) as cluster:
        grant(cluster, options=["--port-forward"])
        yield cluster


@pytest.fixture
def masters(kube, engine):
    """Programs in pods; nothing of them is left."""
    masters = Masters(kube, engine.image)
    yield masters
    masters.clear()
    masters.cluster.wait_until_gone()


@pytest.fixture(params=["dialled", "by streams"])
def address(request, kubelet):
    """Address at which pods reach a program outside of the cluster; None where they do not."""
    return kubelet.gateway if request.param == "dialled" else None
