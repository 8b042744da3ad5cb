"""Rings of pods: masters in and outside the cluster, lost pods, missing capacity."""

import time

import pytest

import fiber
from fiber._runtime import runtime
from fiber.experimental import ConditionKind, Ring, RingError, current_ring

pytestmark = pytest.mark.timeout(300)

#: seconds within which a ring has ended that lost a member
BOUND = 60.0
NODES = ["one", "two"]
# no more than this machine has: an engine refuses a limit of more
CAPACITY = {"cpu": "2", "memory": "16Gi"}


@pytest.fixture
def master(address, kube, engine):
    """This program, outside of the cluster: pods reach it, or do not."""
    settings = {"image": engine.image, "k8s_kubeconfig": str(kube.kubeconfig)}
    settings |= {} if address is None else {"k8s_address": address}
    fiber.init(backend="k8s", **settings)
    yield settings
    current = runtime.started()
    if current is not None:
        current.close()
    fiber.init()
    kube.wait_for("pods", lambda pods: not pods)


def size_of(rank, size):
    return size


def last(rank, size):
    """Runs until it is killed; once all were restarted, writes what was committed."""
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


def test_without_capacity_for_all_none_runs_and_the_clusters_message_is_reported(master, kube):
    # two of them could run, where their processes are up in time; what others use may be free soon
    ring = Ring([(3, fiber.meta(cpu=1.5))], size_of, start_timeout=20.0)

    with pytest.raises(RingError, match=r"[012] of 3 members came up within 20 s") as caught:
        ring.run()

    assert "Insufficient cpu" in str(caught.value)


@pytest.mark.parametrize("address", ["dialled"], indirect=True)
def test_rings_that_fit_one_after_the_other_do_not_hold_what_each_other_lack(master, kube):
    kube.install("volcano")
    fiber.init(backend="k8s", k8s_gang="volcano", k8s_unschedulable_timeout=100.0, **master)
    # a node has room for one member
    rings = [Ring([(2, fiber.meta(cpu=1.5))], size_of, start_timeout=100.0) for _ in range(3)]
    for ring in rings:
        ring.start()
    assert [ring.join(120) for ring in rings] == [[2, 2]] * 3
