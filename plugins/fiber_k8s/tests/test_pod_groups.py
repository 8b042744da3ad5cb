"""Groups that start together or not at all, by the schedulers that know groups."""

import pytest

from cluster.objects import of
from fiber.model import Gang, JobState, ResourceRequest
from wire_world import until

GROUPS = {
    "volcano": of("podgroups", "scheduling.volcano.sh", "v1beta1"),
    "scheduler-plugins": of("podgroups", "scheduling.x-k8s.io", "v1alpha1"),
}
CAPACITY = {"cpu": "2"}


@pytest.fixture(scope="module")
def cluster(hollow):
    for name in GROUPS:
        hollow.install(name)
    return hollow


def groups(cluster, gang):
    return cluster.call(lambda: list(cluster.store.list(GROUPS[gang])))


def submitted(site, backend, size, timeout, **more):
    """Jobs of one gang."""
    gang = Gang(name="ring-1", size=size, timeout=timeout)
    return [site.start(backend, gang=gang, **more) for _ in range(size)]


@pytest.mark.parametrize("gang", GROUPS)
def test_all_members_start_together_and_the_group_exists_until_its_last_pod_is_gone(
    site, cluster, gang
):
    backend = site.open(gang=gang, queue="team")
    jobs = submitted(site, backend, 3, 20.0)
    for job in jobs:
        assert backend.recorder.running(job)
    (group,) = groups(cluster, gang)
    assert group["spec"]["minMember"] == 3
    (owner,) = group["metadata"]["ownerReferences"]
    assert owner["kind"] == "Lease"
    for job in jobs[1:]:
        backend.kill(job)
        backend.recorder.end(job)
    assert len(groups(cluster, gang)) == 1
    backend.kill(jobs[0])
    until(lambda: not groups(cluster, gang))


@pytest.mark.parametrize("gang", GROUPS)
def test_where_not_all_have_room_none_runs_and_none_stays(site, cluster, gang):
    backend = site.open(gang=gang)
    jobs = submitted(site, backend, 5, 60.0, resources=ResourceRequest(cpu=1))
    for job in jobs:
        told = backend.recorder.until(job, lambda one: "not all of the 5 pods" in one.message)
        assert told.state is JobState.PENDING
    for job in jobs:
        backend.kill(job)
    site.cluster.wait_until_gone(backend.run, ("pods",))
    until(lambda: not groups(cluster, gang))
    pods = [
        pod
        for kind, pod in cluster.history("pods")
        if pod["metadata"]["labels"].get("fiber/run") == backend.run
    ]
    assert pods
    assert not any(pod["spec"].get("nodeName") for pod in pods)
