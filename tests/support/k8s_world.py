"""Pods and recordings of a real cluster, for tests of pure functions."""

import copy
import functools
import json
from pathlib import Path

import pytest

from fiber.model import JobSpec
from fiber_k8s.config import K8sConfig
from fiber_k8s.manifest import CONTAINER, PodContext, manifest

RECORDINGS = Path(__file__).parents[3] / "shared" / "k8s-recordings"

#: what a child has no use for, or what is not its own; whatever the values
_OWN = {
    *("nodeName", "hostname", "subdomain", "activeDeadlineSeconds", "priority", "preemptionPolicy"),
    *("overhead", "schedulingGates", "readinessGates", "resourceClaims", "ephemeralContainers"),
    *("topologySpreadConstraints", "serviceAccount"),
}
_CONTAINERS_OWN = {
    *("args", "ports", "resources", "livenessProbe", "readinessProbe", "startupProbe"),
    *("lifecycle", "stdin", "tty", "terminationMessagePath"),
}

PARENT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "trainer-0",
        "namespace": "research",
        "uid": "11111111-2222-3333-4444-555555555555",
        "resourceVersion": "4711",
        "generateName": "trainer-",
        "creationTimestamp": "2026-11-20T17:16:13Z",
        "labels": {"app": "trainer", "pod-template-hash": "abc", "job-name": "train"},
        "annotations": {"sidecar.istio.io/status": "injected"},
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "trainer", "uid": "u"}
        ],
    },
    "spec": {
        **dict.fromkeys(_OWN, "the parent's"),
        "restartPolicy": "Always",
        "serviceAccountName": "builder",
        "automountServiceAccountToken": True,
        "enableServiceLinks": True,
        "terminationGracePeriodSeconds": 600,
        "priorityClassName": "batch",
        "runtimeClassName": "gvisor",
        "schedulerName": "default-scheduler",
        "dnsPolicy": "ClusterFirst",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "big"},
        "affinity": {"nodeAffinity": {}, "podAntiAffinity": {}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "code", "emptyDir": {}},
            {"name": "proxy", "emptyDir": {}},
            {"name": "kube-api-access-w5fwm", "projected": {"sources": []}},
        ],
        "initContainers": [
            {
                "name": "clone",
                "image": "git:1",
                "volumeMounts": [
                    {"name": "code", "mountPath": "/code"},
                    {"name": "kube-api-access-w5fwm", "mountPath": "/var/run/secrets/x"},
                ],
            },
            {
                "name": "migrate",
                "image": "db:1",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {
                "name": "sidecar",
                "image": "proxy:1",
                "restartPolicy": "Always",
                "volumeMounts": [{"name": "code", "mountPath": "/code"}],
            },
        ],
        "containers": [
            {
                **dict.fromkeys(_CONTAINERS_OWN, "the parent's"),
                "name": "main",
                "image": "registry.example/team/app:3",
                "imagePullPolicy": "Always",
                "command": ["python", "train.py"],
                "workingDir": "/work",
                "env": [
                    {"name": "PLAIN", "value": "one"},
                    {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {
                        "name": "CPUS",
                        "valueFrom": {
                            "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}
                        },
                    },
                    {"name": "FIBER_BOOTSTRAP", "value": "file:/mine"},
                ],
                "envFrom": [{"secretRef": {"name": "credentials"}}],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "code", "mountPath": "/code", "readOnly": True},
                    {"name": "kube-api-access-w5fwm", "mountPath": "/var/run/secrets/x"},
                ],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
            },
            {
                "name": "proxy",
                "image": "proxy:1",
                "volumeMounts": [{"name": "proxy", "mountPath": "/p"}],
            },
        ],
    },
    "status": {"phase": "Running", "podIP": "10.0.0.7"},
}

#: recorded of a real cluster, as it refuses a pod
QUOTA_EXCEEDED = (
    'pods "c" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'
)
#: a run's, as an owner
LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "fiber-r", "uid": "u1"}


def parent():
    """A pod with everything that a parent may have."""
    return copy.deepcopy(PARENT)


def spec(**changes):
    """A program that runs as a job."""
    return JobSpec(**{"run_id": "0a1b2c3d", "name": "Process-3", "argv": ("true",), **changes})


def process(**changes):
    """A process of Fiber's."""
    argv = ("python3", "-m", "fiber._agent.job")
    return spec(**{"argv": argv, "entry": "fiber._runtime.bootstrap:main", **changes})


def make(job=None, pod_context=None, **settings):
    """The pod of a job, by the settings."""
    return manifest(job or process(), K8sConfig(**settings), pod_context or PodContext())


def container(pod):
    """The one container of a pod, which is Fiber's."""
    assert [one["name"] for one in pod["spec"]["containers"]] == [CONTAINER]
    return pod["spec"]["containers"][0]


def env(pod):
    """The variables of a pod's container; those that are references as these."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(pod)["env"]}


@functools.cache
def recorded(name):
    """The lines of a recording of a real cluster."""
    path = RECORDINGS / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"the recording {name} of a real cluster is not here")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pods_of(name, pod=None):
    """Events of pods in a recording: pairs of a type and an object."""
    told = [line["line"] for line in recorded(name) if line.get("type") == "watch"]
    return [
        (event["type"], event["object"])
        for event in told
        if event["object"].get("kind") == "Pod"
        and pod in (None, event["object"]["metadata"]["name"])
    ]
