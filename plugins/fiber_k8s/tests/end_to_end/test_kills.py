"""Pods that die in every way during maps, and an API that goes away: results are right.

The full count (``SOAK=1``) is 200 deaths and breaks, and 8 dead masters.
"""

import random
import time
from statistics import median

import pytest

import soak
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.sweeping import Sweeper
from k8s_masters import PodEndTimes

SQUARES = """
import os, threading, time
import fiber
from fiber._runtime import runtime

def square(n):
    if os.path.exists("/tmp/hungry"):
        # more than its limit
        held = [bytes(range(256)) * 2**14 for _ in range(256)]
    time.sleep(0.02)
    return n * n

def tell(events):
    for job, status in events:
        if status.state.is_terminal:
            reason = status.reason.kind.name if status.reason else "none"
            print("ended", job.id, time.time(), reason, flush=True)

if __name__ == "__main__":
    fiber.init(memory=256)
    with fiber.Pool(3) as pool:
        pool.map(square, range(30), chunksize=1)
        events = fiber.get_backend().events(runtime.current().run_id)
        threading.Thread(target=tell, args=(events,), daemon=True).start()
        print("ready", flush=True)
        rounds = 0
        while not os.path.exists("/tmp/enough"):
            assert pool.map(square, range(300)) == [n * n for n in range(300)]
            rounds += 1
    print("right", rounds > 0, flush=True)
"""
#: deaths in the life of one program
DEATHS = 10 if soak.is_full() else 5
#: the API says that somebody has ended, and within these the program knows
REPORTED_WITHIN = 2.0
LEASE = 3
#: what the lease, the ten seconds after it, and a busy machine take
LEFT = LEASE + 30

pytestmark = pytest.mark.timeout(5 * 3600 if soak.is_full() else 300)


@pytest.fixture
def ends(kube):
    return PodEndTimes(kube)


@pytest.fixture
def outages():
    """When the API was away, from and until."""
    return []


@pytest.fixture
def deaths(masters, kube, outages):
    """Ways in which a worker dies, and ways in which the API is cut off from its program."""

    def killed_unseen(name):
        begun = time.time()
        with kube.outage():
            masters.kill(name)
            # as long as the test is about
            time.sleep(2.0)
        outages.append((begun, time.time()))

    def away(_):
        begun = time.time()
        with kube.outage():
            time.sleep(2.0)
        outages.append((begun, time.time()))

    deadly = {
        "deleted": lambda name: kube.delete_pod(name, grace=1),
        "deleted by force": lambda name: kube.delete_pod(name, grace=0),
        "evicted": kube.evict,
        "preempted": kube.preempt,
        "evicted by its node": kube.kubelet_evict,
        "killed": masters.kill,
        "killed while the API is away": killed_unseen,
        "out of memory": lambda name: masters.touch(name, "/tmp/hungry"),
    }
    harmless = {
        "API away": away,
        "watch cut": lambda _: kube.cut_watches(),
        "history forgotten": lambda _: (kube.expire(), kube.cut_watches()),
    }
    return deadly, harmless


def wait_for_output(masters, name, test):
    """Wait for a match in a program's output; return it."""
    deadline = time.monotonic() + 60
    while not (found := test(masters.output(name))):
        assert time.monotonic() < deadline, masters.output(name)
        time.sleep(0.2)
    return found


def reported_ends(pods, masters, name):
    """Times at which ends of pods were reported to a program, and their reasons, by name."""

    def ends_of(lines):
        words = (line.split() for line in lines if line.startswith("ended "))
        found = {pod: (float(when), reason) for _, pod, when, reason in words}
        return found.keys() >= set(pods) and (found,)

    (found,) = wait_for_output(masters, name, ends_of)
    return found


def seconds_between(since, until, outages):
    """Return the seconds between two times without outages of the API."""
    away = (min(until, end) - max(since, begin) for begin, end in outages)
    return until - since - sum(max(0.0, seconds) for seconds in away)


def test_maps_are_right_whatever_dies(masters, ends, deaths, outages, record_property):
    deadly, harmless = deaths
    delays = []
    for current in soak.rounds("failing pods", 20):
        chance = random.Random(current.seed)
        name = masters.start(SQUARES)
        masters.wait_for_workers(3)
        wait_for_output(masters, name, lambda lines: "ready" in lines)
        done, died = [], {}
        for _ in range(DEATHS):
            how = chance.choice(sorted({**deadly, **harmless}))
            victim = chance.choice(sorted(masters.workers()))
            done.append(how)
            {**deadly, **harmless}[how](victim)
            if how in deadly:
                died[victim] = (how, ends.wait(victim))
                masters.wait_for_workers(chance.choice([2, 3]))
            time.sleep(chance.uniform(0, 1))
        masters.wait_for_workers(3)
        told = reported_ends(died, masters, name)
        masters.touch(name, "/tmp/enough")
        code, lines = masters.wait(name)
        assert (code, "right True" in lines) == (0, True), (done, lines)
        masters.wait_until_gone()
        late = {
            pod: round(seconds_between(when, told[pod][0], outages), 3)
            for pod, (_, when) in died.items()
        }
        current.note(
            deaths=done,
            told=[(how, late[pod], told[pod][1]) for pod, (how, _) in died.items()],
        )
        delays += late.values()
    if delays:
        record_property(
            "seconds until an end is told: median, worst", (median(delays), max(delays))
        )
        assert median(delays) < REPORTED_WITHIN


def test_a_masters_processes_end_with_their_lease_and_a_sweep_removes_the_rest(masters, kube, ends):
    client = Client(K8sConfig(kubeconfig=str(kube.kubeconfig)))
    sweeper = Sweeper(client)
    for current in soak.rounds("dead masters", 8):
        name = masters.start(SQUARES, env={"FIBER_LEASE": str(LEASE)})
        masters.wait_for_workers(3)
        pods = masters.workers()

        since = time.time()
        masters.kill(name)
        took = max(ends.wait(pod) for pod in pods) - since

        current.note(seconds_until_no_process=round(took, 1))
        assert took < LEFT
        # its pod is there, as after a crash, so that nobody but a sweep removes what it owned
        assert kube.get("pods", name) is not None
        assert kube.objects("leases") != []
        deadline = time.monotonic() + 60
        # of the master's own pod the cluster says that it has ended
        while not sweeper.sweep_once().removed:
            assert time.monotonic() < deadline, kube.objects("leases")
            # a Lease says by itself when it is over, and nobody tells of that
            time.sleep(1.0)
        masters.wait_until_gone()
        kube.delete_pod(name, grace=0)
    client.close()
