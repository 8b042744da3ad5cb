"""A program outside the cluster: everything goes by streams through the API server."""

import sys
import time

import pytest

import fiber
from cluster import Cluster
from cluster.real import Docker
from dockerd import engine
from fiber import runtime

__all__ = ["engine"]


@pytest.fixture(scope="module")
def kube(engine):
    with Cluster.start(runtime=Docker(engine), nodes=["one"]) as cluster:
        yield cluster


@pytest.fixture
def outside(kube, engine):
    """This program is outside of the cluster, and starts its processes there."""
    fiber.init(backend="k8s", image=engine.image, k8s_kubeconfig=str(kube.kubeconfig))
    yield kube
    current = runtime.started()
    run = current.run_id
    current.close()
    fiber.init()
    left = [pod["metadata"]["name"] for pod in kube.objects("pods")]
    assert [name for name in left if run in name] == []


def square(x):
    return x * x


def slow_square(x):
    time.sleep(0.05)
    return x * x


def take_all(queue):
    total = 0
    while (item := queue.get(timeout=60)) is not None:
        total += item
    sys.exit(total)


def feed(queue):
    for item in (*range(5), None):
        queue.put(item)


def own_queue(sender):
    queue = fiber.Queue()
    sender.send(queue)
    take_all(queue)


def test_a_pool_works(outside):
    with fiber.Pool(2) as pool:
        assert pool.map(square, range(1000)) == [x * x for x in range(1000)]


def test_jobs_reach_each_other(outside):
    reader, writer = fiber.Pipe(duplex=False)
    owner = fiber.Process(target=own_queue, args=(writer,))
    owner.start()
    other = fiber.Process(target=feed, args=(reader.recv(),))
    other.start()
    owner.join(60)
    other.join(60)
    assert (owner.exitcode, other.exitcode) == (10, 0)
