"""A pool on a cluster without capacity for all its workers; pods are hollow."""

import logging
import time

import pytest

import fiber
from cluster import Cluster
from fiber._runtime import runtime


@pytest.fixture(scope="module")
def cluster():
    with Cluster.start(nodes=["one"], capacity={"cpu": "2"}) as cluster:
        yield cluster


@pytest.fixture
def pool(cluster):
    fiber.init(
        backend="k8s",
        k8s_kubeconfig=str(cluster.kubeconfig),
        # pods that do nothing need no way here
        k8s_address="127.0.0.1",
        image="app:1",
        cpu=1,
    )
    pool = fiber.Pool(4)
    yield pool
    pool.terminate()
    pool.join()
    current = runtime.started()
    if current is not None:
        current.close()
    fiber.init()


def running(pods):
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_fewer_workers_are_reported_with_the_schedulers_message(pool, cluster, caplog):
    with caplog.at_level(logging.WARNING, "fiber"):
        pool.map_async(abs, range(3))
        cluster.wait_for("pods", lambda pods: len(running(pods)) == 2)
        until(lambda: "for a place" in caplog.text)
    (said,) = [one for one in caplog.messages if "for a place" in one]
    assert "2 of 4 workers run, 2 wait for a place: 0/1 nodes are available" in said
    assert "Insufficient cpu" in said


@pytest.mark.timeout(120)
def test_those_that_wait_run_as_soon_as_nodes_have_capacity(pool, cluster):
    pool.map_async(abs, range(3))
    cluster.wait_for("pods", lambda pods: len(running(pods)) == 2)
    cluster.add_node("two", {"cpu": "2"})
    cluster.wait_for("pods", lambda pods: len(running(pods)) == 4)
