"""Fixtures of this backend: an engine, a cluster of hollow pods, and backends on it."""

import pytest

from cluster import Cluster
from dockerd import engine
from k8s_site import Scripts, Site

# one for all modules: an engine and its image take seconds
__all__ = ["engine"]


@pytest.fixture(scope="module")
def scripts():
    return Scripts()


@pytest.fixture(scope="module")
def hollow(scripts):
    with Cluster.start(script=scripts, nodes=["one", "two"]) as cluster:
        yield cluster


@pytest.fixture
def site(hollow, scripts):
    site = Site(hollow, scripts)
    yield site
    site.close()


@pytest.fixture
def backend(site):
    return site.open()
