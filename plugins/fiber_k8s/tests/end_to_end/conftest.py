"""Fixtures: a cluster whose pods are containers, and masters on it."""

import pytest

from cluster import Cluster
from cluster.real import Docker
from k8s_masters import Masters, grant


@pytest.fixture(scope="module")
def capacity():
    """Of the only node; modules that need another have one of their own."""
    return {"cpu": "64", "memory": "64Gi", "pods": "110"}


@pytest.fixture(scope="module")
def kube(engine, capacity):
    """A cluster with a service account that has the least rights."""
    with Cluster.start(runtime=Docker(engine), nodes=["one"], capacity=capacity) as cluster:
        grant(cluster)
        yield cluster


@pytest.fixture
def masters(kube, engine):
    """Programs in pods; nothing of them is left."""
    masters = Masters(kube, engine.image)
    yield masters
    masters.clear()
    masters.wait_until_gone()
