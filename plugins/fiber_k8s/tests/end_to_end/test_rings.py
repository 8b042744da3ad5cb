"""Rings whose members are pods: who is where, what each has, and pods that go."""

import os
import time

import pytest

import fiber
from cluster import Cluster
from cluster.real import Docker
from fiber import runtime
from fiber.experimental import ConditionKind, Ring, RingError, current_ring

pytestmark = pytest.mark.timeout(300)

#: seconds within which a ring has ended that lost a member
BOUND = 60.0


@pytest.fixture(scope="module")
def kubelet(engine):
    return Docker(engine)


@pytest.fixture(scope="module")
def kube(kubelet):
    # no more than this machine has: an engine refuses a limit of more
    capacity = {"cpu": "2", "memory": "16Gi", "pods": "110"}
    with Cluster.start(runtime=kubelet, nodes=["one", "two"], capacity=capacity) as cluster:
        yield cluster


@pytest.fixture
def master(kube, kubelet, engine):
    """This program, outside of the cluster, where pods reach it."""
    fiber.init(
        backend="k8s",
        image=engine.image,
        k8s_kubeconfig=str(kube.kubeconfig),
        k8s_address=kubelet.gateway,
    )
    yield
    current = runtime.started()
    if current is not None:
        current.close()
    fiber.init()
    kube.wait_for("pods", lambda pods: not pods)


def where(rank, size):
    ring = current_ring()
    return rank, size, os.uname().nodename, [member.host for member in ring.members]


def last(rank, size):
    """Stays until somebody ends it, and once all were started again tells what was committed."""
    ring = current_ring()
    if ring.restarts == 0:
        ring.commit(f"of {rank}", step=rank + 1)
        time.sleep(600)
    return ring.state, ring.step, ring.restarts


def pods_of(kube, ring):
    """Names of a ring's pods, by seat."""
    found = {
        pod["metadata"]["annotations"]["fiber/name"]: pod["metadata"]["name"]
        for pod in kube.objects("pods")
        if not pod["metadata"].get("deletionTimestamp")
    }
    return [found[name] for name in sorted(found) if name.startswith(ring.name)]


def running(ring):
    ring.start()
    assert ring.wait_for(lambda status: status.has(ConditionKind.RUNNING), 120)
    # what members commit first takes a moment
    time.sleep(0.5)


def test_each_member_is_a_pod_and_knows_the_others(master):
    found = Ring(3, where).run()

    assert [one[:2] for one in found] == [(0, 3), (1, 3), (2, 3)]
    hosts = [one[2] for one in found]
    assert len(set(hosts)) == 3
    assert all(one[3] == hosts for one in found)


def test_several_ranks_share_a_pod(master):
    found = Ring(2, where, slots=2).run()

    hosts = [one[2] for one in found]
    assert (len(set(hosts)), hosts[0], hosts[2]) == (2, hosts[1], hosts[3])


@fiber.meta(cpu=0.5, memory=200)
def modest(rank, size):
    return rank


def test_every_rank_has_what_its_function_asks_for(master, kube):
    before = len(kube.history("pods"))

    assert Ring(2, modest).run() == [0, 1]

    made = [pod for kind, pod in kube.history("pods")[before:] if kind == "ADDED"]
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in made]
    assert limits == [{"cpu": "500m", "memory": "200Mi"}] * 2


@pytest.mark.parametrize("how", ["deleted", "deleted by force", "evicted"])
def test_a_member_whose_pod_goes_ends_the_ring_with_the_reason(master, kube, how):
    ring = Ring(2, last, heartbeat=10.0)
    running(ring)

    name = pods_of(kube, ring)[1]
    if how == "evicted":
        kube.evict(name)
    else:
        kube.delete_pod(name, grace=1 if how == "deleted" else 0)

    began = time.monotonic()
    with pytest.raises(RingError, match="rank 1 on ") as caught:
        ring.join(BOUND)
    assert time.monotonic() - began < BOUND
    assert caught.value.failure.rank == 1


def test_all_members_start_again_from_what_a_surviving_one_knew(master, kube):
    ring = Ring(2, last, max_restarts=1, heartbeat=10.0)
    running(ring)

    kube.delete_pod(pods_of(kube, ring)[0], grace=1)

    assert ring.join(BOUND) == [("of 1", 2, 1)] * 2
