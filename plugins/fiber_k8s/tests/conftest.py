"""Fixtures of this backend: an engine, a cluster of hollow pods, and backends on it.

A module has nodes of its own by the constants ``NODES`` and ``CAPACITY``.
"""

import contextlib

import pytest

from cluster import Cluster
from cluster.real import Docker
from dockerd import engine
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from k8s_site import Scripts, Site

# one for all modules: an engine and its image take seconds
__all__ = ["engine"]


@pytest.fixture(scope="module")
def scripts():
    return Scripts()


@pytest.fixture(scope="module")
def hollow(request, scripts):
    nodes = getattr(request.module, "NODES", ["one", "two"])
    capacity = getattr(request.module, "CAPACITY", None)
    with Cluster.start(script=scripts, nodes=nodes, capacity=capacity) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kubelet(engine):
    """Runs pods as containers."""
    return Docker(engine)


@pytest.fixture
def site(hollow, scripts):
    with contextlib.closing(Site(hollow, scripts)) as site:
        yield site


@pytest.fixture
def cluster(site):
    return site.cluster


@pytest.fixture
def client(cluster):
    with contextlib.closing(Client(K8sConfig(kubeconfig=str(cluster.kubeconfig)))) as client:
        yield client


@pytest.fixture
def backend(site):
    return site.open()
