"""A pod's specification that is copied to another pod, as on a real cluster."""

import contextlib
import copy

import pytest
from kubernetes import client

from cluster import Cluster


@pytest.fixture(scope="module")
def kube():
    with Cluster.start() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def core(kube):
    with contextlib.closing(kube.client_for()) as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def parent(kube, core):
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
    thing = {"metadata": {"name": "parent", "labels": {"app": "x"}}, "spec": spec}
    kube.create("pods", thing)
    kube.wait_for("pods", lambda pods: pods and pods[0]["status"]["phase"] == "Running")
    yield kube.get("pods", "parent")
    core.delete_collection_namespaced_pod("default", grace_period_seconds=0)
    kube.wait_for("pods", lambda pods: not pods)


@pytest.fixture
def child(parent, kube):
    """Makes a child of the parent's specification, changed."""

    def make(change=lambda spec: None, **metadata):
        spec = copy.deepcopy(parent["spec"])
        spec.pop("nodeName")
        change(spec)
        thing = {"metadata": {"name": "child", **metadata}, "spec": spec}
        with contextlib.closing(kube.client_for()) as api:
            client.CoreV1Api(api).create_namespaced_pod("default", thing)
        return kube.get("pods", "child")

    return make


def tokens(pod):
    names = [volume["name"] for volume in pod["spec"]["volumes"]]
    return [name for name in names if name.startswith("kube-api-access-")]


def test_the_volume_of_the_token_is_not_doubled(parent, child):
    assert tokens(child()) == tokens(parent)


def test_a_fresh_container_gets_the_volume_that_was_copied(parent, child):
    def fresh(spec):
        spec["containers"] = [{"name": "other", "image": "app:1"}]

    made = child(fresh)
    (mount,) = made["spec"]["containers"][0]["volumeMounts"]
    assert tokens(made) == tokens(parent) == [mount["name"]]


def test_tolerations_are_not_doubled(parent, child):
    assert child()["spec"]["tolerations"] == parent["spec"]["tolerations"]


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda spec: spec.pop("volumes"), 'spec.containers[0].volumeMounts[0].name: Not found: "'),
        (
            lambda spec: spec.update(ephemeralContainers=[{"name": "e", "image": "app:1"}]),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            lambda spec: spec.update(priority=777),
            (
                "the integer value of priority (777) must not be provided in pod spec; priority "
                "admission controller computed 0 from the given PriorityClass name"
            ),
        ),
        (
            lambda spec: spec.update(overhead={"cpu": "1"}),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            lambda spec: spec.update(nodeName="knode", schedulingGates=[{"name": "a/b"}]),
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ),
    ],
)
def test_what_may_not_be_copied(child, change, told):
    with pytest.raises(client.ApiException) as caught:
        child(change)
    assert told.replace('"', '\\"') in caught.value.body


def test_a_version_may_not_be_copied(parent, child):
    with pytest.raises(client.ApiException) as caught:
        child(resourceVersion=parent["metadata"]["resourceVersion"])
    assert caught.value.status == 500
    assert "resourceVersion should not be set on objects to be created" in caught.value.body


@pytest.mark.parametrize(
    "change, told",
    [
        (
            lambda spec: spec.update(schedulingGates=[{"name": "a/b"}]),
            "Scheduling is blocked due to non-empty scheduling gates",
        ),
        (
            lambda spec: spec.update(affinity=_ALONE),
            (
                "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. no new "
                "claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims "
                "found for incoming pod."
            ),
        ),
    ],
)
def test_what_keeps_a_copy_waiting(kube, child, change, told):
    child(change, labels={"app": "x"})

    def waits(pods):
        return [
            pod for pod in pods if told in str(pod["status"].get("conditions")).replace("\\", "")
        ]

    assert kube.wait_for("pods", waits)


_ALONE = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {"app": "x"}},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}
