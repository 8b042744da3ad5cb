"""A pool on a cluster without capacity for all its workers; pods are hollow."""

import logging

import pytest

import fiber
from fiber._runtime import runtime
from wire_world import until

NODES = ["one"]
CAPACITY = {"cpu": "2"}


@pytest.fixture
def pool(hollow):
    fiber.init(
        backend="k8s",
        k8s_kubeconfig=str(hollow.kubeconfig),
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


@pytest.mark.timeout(120)
def test_fewer_workers_are_reported_with_the_schedulers_message_and_the_others_come_with_new_nodes(
    pool, hollow, caplog
):
    with caplog.at_level(logging.WARNING, "fiber"):
        pool.map_async(abs, range(3))
        hollow.wait_for("pods", lambda pods: len(running(pods)) == 2)
        until(lambda: "for a place" in caplog.text)
    (said,) = [one for one in caplog.messages if "for a place" in one]
    assert "2 of 4 workers run, 2 wait for a place: 0/1 nodes are available" in said
    assert "Insufficient cpu" in said

    hollow.add_node("two", {"cpu": "2"})

    hollow.wait_for("pods", lambda pods: len(running(pods)) == 4)
