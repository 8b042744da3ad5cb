"""Pods that die in every way during maps, and an API that goes away: results are right.

The full count (``tox -e soak``) is 200 deaths.
"""

import random
import time

import pytest

import soak
from cluster import Cluster
from cluster.real import Docker
from dockerd import engine
from k8s_masters import Masters, grant

__all__ = ["engine"]

SQUARES = """
import sys, time
import fiber

def square(n):
    time.sleep(0.02)
    return n * n

if __name__ == "__main__":
    with fiber.Pool(3) as pool:
        pool.map(square, range(30), chunksize=1)
        print("ready", flush=True)
        until = time.monotonic() + float(sys.argv[1])
        rounds = 0
        while time.monotonic() < until:
            assert pool.map(square, range(300)) == [n * n for n in range(300)]
            rounds += 1
    print("right", rounds > 0, flush=True)
"""
#: seconds between two deaths, so that a worker comes up in between
GAP = 4.0
DEATHS = 5


@pytest.fixture(scope="module")
def kube(engine):
    capacity = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    with Cluster.start(runtime=Docker(engine), nodes=["one"], capacity=capacity) as cluster:
        grant(cluster)
        yield cluster


@pytest.fixture
def masters(kube, engine):
    masters = Masters(kube, engine.image)
    yield masters
    masters.clear()
    masters.wait_until_gone()


def deaths(masters, kube):
    """Ways in which a worker dies, or is cut off for a while."""

    def away(_):
        with kube.outage():
            # as long as the test is about
            time.sleep(2.0)

    return {
        "deleted": lambda name: kube.delete_pod(name, grace=1),
        "deleted by force": lambda name: kube.delete_pod(name, grace=0),
        "evicted": kube.evict,
        "preempted": kube.preempt,
        "evicted by its node": kube.kubelet_evict,
        "killed": masters.kill,
        "API away": away,
        "watch cut": lambda _: kube.cut_watches(),
        "history forgotten": lambda _: (kube.expire(), kube.cut_watches()),
    }


@pytest.mark.timeout(5 * 3600 if soak.is_full() else 300)
def test_maps_are_right_whatever_dies(masters, kube):
    for current in soak.rounds("failing pods", 40):
        chance = random.Random(current.seed)
        name = masters.start(SQUARES, str(GAP * (DEATHS + 1)))
        masters.wait_for_workers(3)
        ways = deaths(masters, kube)
        done = []
        for _ in range(DEATHS):
            how = chance.choice(sorted(ways))
            victims = sorted(masters.workers())
            if victims:
                ways[how](chance.choice(victims))
                done.append(how)
            # until the next one
            time.sleep(GAP)
        code, lines = masters.wait(name)
        assert (code, lines[-1:]) == (0, ["right True"]), (done, lines)
        masters.wait_until_gone()
        current.note(deaths=done)
