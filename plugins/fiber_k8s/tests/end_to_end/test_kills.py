"""Pods that die in every way during maps, and an API that goes away: results are right.

The full count (``SOAK=1``) is 200 deaths and breaks, and 8 dead masters.
"""

import contextlib
import time

import pytest

import soak
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.sweeping import Sweeper
from k8s_masters import time_of_end
from wire_world import until

SQUARES = """
import os, time
import fiber

def square(n):
    if os.path.exists("/tmp/hungry"):
        # more than its limit
        held = [bytes(range(256)) * 2**14 for _ in range(256)]
    time.sleep(0.02)
    return n * n

if __name__ == "__main__":
    fiber.init(memory=256)
    with fiber.Pool(3) as pool:
        pool.map(square, range(30), chunksize=1)
        print("ready", flush=True)
        rounds = 0
        while not os.path.exists("/tmp/enough"):
            assert pool.map(square, range(300)) == [n * n for n in range(300)]
            rounds += 1
    print("right", rounds > 0, flush=True)
"""
#: deaths in the life of one program
DEATHS = 10 if soak.is_full() else 5
LEASE = 3
#: what the lease, the ten seconds after it, and a busy machine take
LEFT = LEASE + 30

pytestmark = pytest.mark.timeout(5 * 3600 if soak.is_full() else 300)


def deaths(masters, kube):
    """Ways in which a worker dies, and ways in which the API is cut off from its program."""

    def away(kill=lambda _: None):
        def act(name):
            with kube.outage():
                kill(name)
                # as long as the test is about
                time.sleep(2.0)

        return act

    deadly = {
        "deleted": lambda name: kube.delete_pod(name, grace=1),
        "deleted by force": lambda name: kube.delete_pod(name, grace=0),
        "evicted": kube.evict,
        "preempted": kube.preempt,
        "evicted by its node": kube.kubelet_evict,
        "killed": masters.kill,
        "killed while the API is away": away(masters.kill),
        "out of memory": lambda name: masters.touch(name, "/tmp/hungry"),
    }
    harmless = {
        "API away": away(),
        "watch cut": lambda _: kube.cut_watches(),
        "history forgotten": lambda _: (kube.expire(), kube.cut_watches()),
    }
    return deadly, harmless


def test_maps_are_right_whatever_dies(masters, kube):
    deadly, harmless = deaths(masters, kube)
    for current in soak.rounds("failing pods", 20):
        chance = current.rng
        name = masters.start(SQUARES)
        masters.wait_for_workers(3)
        until(lambda name=name: "ready" in masters.output(name), timeout=60.0)
        done = []
        for _ in range(DEATHS):
            how = chance.choice(sorted({**deadly, **harmless}))
            victim = chance.choice(sorted(masters.workers()))
            done.append(how)
            {**deadly, **harmless}[how](victim)
            if how in deadly:
                time_of_end(kube, victim)
                masters.wait_for_workers(chance.choice([2, 3]))
            time.sleep(chance.uniform(0, 1))
        masters.wait_for_workers(3)
        masters.touch(name, "/tmp/enough")
        code, lines = masters.wait(name)
        assert (code, "right True" in lines) == (0, True), (done, lines)
        kube.wait_until_gone()
        current.note(deaths=done)


def test_a_masters_processes_end_with_their_lease_and_a_sweep_removes_the_rest(masters, kube):
    for current in soak.rounds("dead masters", 8):
        name = masters.start(SQUARES, env={"FIBER_LEASE": str(LEASE)})
        masters.wait_for_workers(3)
        pods = masters.workers()

        since = time.time()
        masters.kill(name)
        took = max(time_of_end(kube, pod) for pod in pods) - since

        current.note(seconds_until_no_process=round(took, 1))
        assert took < LEFT
        # its pod is there, as after a crash, so that nobody but a sweep removes what it owned
        assert kube.get("pods", name) is not None
        assert kube.objects("leases") != []
        with contextlib.closing(Client(K8sConfig(kubeconfig=str(kube.kubeconfig)))) as client:
            sweeper = Sweeper(client)
            # of the master's own pod the cluster says that it has ended
            until(lambda sweeper=sweeper: sweeper.sweep_once().removed, timeout=60.0)
        kube.wait_until_gone()
        kube.delete_pod(name, grace=0)
