"""Pods live and end on the emulated cluster as they did on a real one."""

import contextlib
import re

import pytest

from cluster import Act, Cluster
from cluster.lives import moments
from cluster.replay import Replay

_NEVER = (
    "ErrImageNeverPull",
    'Container image "no-such-image:1" is not present with pull policy of Never',
)
_NO_HOST = ("ErrImagePull", 'failed to pull and unpack image "no-such-host/image:1"')
_NO_NAME = ("InvalidImageName", 'Failed to apply default image tag "UPPER/Case"')
_NO_START = ("StartError", "failed to create containerd task: no such file or directory")
_RUNS, _HEARS = Act(on_term=None), Act(on_term=0)
#: what the programs of a recording's pods did, by the pods' names; default: they hear SIGTERM
_ACTS = {
    "01-success-exit-0": {"demo": Act(code=0, log="hello\n")},
    "02-exit-7": {
        "plain": Act(code=7),
        "fallback": Act(code=1, message="Traceback"),
        "file": Act(code=7, message="x" * 4096),
    },
    "03a-delete-sigterm-handled": {"demo": Act(on_term=3)},
    "03b-delete-pid1-ignores-sigterm": {"demo": _RUNS},
    "03d-delete-twice": {"demo": _RUNS},
    "04a-oom-killed": {"demo": Act(oom=True)},
    "05a-start-error": {
        name: Act(refused=_NO_START)
        for name in ("not-found", "not-executable", "is-a-directory", "workdir-is-a-file")
    },
    "05b-create-container-config-error": {"no-secret": Act(code=0)},
    "06-images": {
        "never": Act(refused=_NEVER),
        "no-host": Act(refused=_NO_HOST),
        "refused": Act(refused=_NO_HOST),
        "no-name": Act(refused=_NO_NAME),
    },
    "09-eviction-api": {"fin": Act(code=0)},
    "10-noexecute-taint": {"late": Act(code=0)},
    "11-drain": {"new": Act(code=0)},
    "12-delete-while-pending": {"no-image": Act(refused=_NEVER)},
    "14a-owner-deleted-background": {"owner": Act(code=0)},
    "14b-owner-deleted-running": {"owner2": _RUNS},
    "15-prestop": {"hook-and-exit": Act(code=0)},
    "16-restart-policy": {"default-policy": Act(code=3), "always-exit-0": Act(code=0)},
    "17-kubelet-eviction": {"storage": _RUNS, "emptydir": _RUNS},
    "19-nodename-set": {"fits": Act(code=0)},
    "07-unschedulable": {"gpu-1": Act(code=0)},
}
#: what happened on the recorded cluster besides requests: the time of the next request, and what
_BESIDES = {
    "11-drain": {2.071: lambda cluster: cluster.cordon("knode")},
    "07-unschedulable": {15.825: lambda cluster: cluster.add_gpus(2)},
    "10-noexecute-taint": {
        3.493: lambda cluster: cluster.taint("knode", "maintenance", "now", "NoExecute")
    },
    "19-nodename-set": {
        0.005: lambda cluster: cluster.cordon("knode"),
        1.764: lambda cluster: cluster.uncordon("knode"),
    },
}
#: what happened after the last request
_AT_LAST = {
    "10-noexecute-taint": lambda cluster: cluster.uncordon("knode"),
    "11-drain": lambda cluster: cluster.uncordon("knode"),
    "17-kubelet-eviction": lambda cluster: [
        cluster.kubelet_evict(name, "rec-17-kubelet-eviction", pressure=False)
        for name in ("storage", "emptydir")
    ],
}
#: how much of the lives of a recording is compared: the rest takes half a minute, or goes on for ever
_BEGINNING = {"03d-delete-twice": 6, "06-images": 5, "16-restart-policy": 6}
#: seconds that its pauses last where their length matters
_PAUSES = {"03d-delete-twice": 2.1}
#: what is told a moment too early or too late to come always, or tells nothing
_FLEETING = (
    # the kubelet forgets why an image was not there while it ends the pod
    re.compile(r"MODIFIED Pending .*deleting\(30\) main:waiting\(.*"),
)


def lives(lines, names=None):
    return moments(
        (line["line"]["type"], line["line"]["object"])
        for line in lines
        if line["type"] == "watch"
        and line["stream"] == "pods"
        and line["line"]["object"].get("kind") == "Pod"
    )


def lasting(told):
    """A pod's states without transient ones."""
    return [word for word in told if not any(rule.fullmatch(word) for rule in _FLEETING)]


@pytest.mark.parametrize(
    "name, only",
    [
        ("01-success-exit-0", None),
        ("02-exit-7", None),
        ("03a-delete-sigterm-handled", None),
        ("03b-delete-pid1-ignores-sigterm", None),
        ("03c-delete-force", None),
        ("03d-delete-twice", None),
        ("04a-oom-killed", None),
        ("05a-start-error", ["not-found", "not-executable", "is-a-directory", "workdir-is-a-file"]),
        ("05b-create-container-config-error", ["no-secret", "no-configmap"]),
        ("06-images", None),
        ("07-unschedulable", None),
        ("08-active-deadline", ["handles", "unscheduled"]),
        ("09-eviction-api", None),
        ("10-noexecute-taint", ["plain", "stays", "late"]),
        ("11-drain", None),
        ("12-delete-while-pending", ["unscheduled", "no-image", "no-volume"]),
        ("13-preemption", ["low-1", "low-2", "high", "polite"]),
        ("14a-owner-deleted-background", None),
        ("14b-owner-deleted-running", ["owner2", "c2"]),
        ("14c-owner-deleted-foreground", ["owner", "blocks"]),
        ("14d-owner-oddities", ["owner", "orphan", "owner2"]),
        ("15-prestop", None),
        ("16-restart-policy", ["default-policy", "always-exit-0"]),
        ("17-kubelet-eviction", None),
        ("19-nodename-set", ["fits", "too-big", "gpus"]),
    ],
)
def test_a_pod_lives_as_it_did_on_a_real_cluster(recorded, name, only):
    lines = recorded(f"pod-life/{name}")
    acts = _ACTS.get(name, {})
    namespace = re.search(r"/namespaces/(rec-[^/?]+)", lines[1]["request"]["path"])[1]

    def script(pod):
        return acts.get(pod["metadata"]["name"], _HEARS)

    with Cluster.start(script=script, capacity={"cpu": "2", "memory": "4Gi"}) as cluster:
        for one in (namespace, f"{namespace}-x"):
            cluster.add_namespace(one)
        _classes(cluster)
        if name == "19-nodename-set":
            cluster.add_gpus(2)
        replay = Replay(cluster, pause=_PAUSES.get(name, 0.3))
        besides = {at: lambda do=do: do(cluster) for at, do in _BESIDES.get(name, {}).items()}
        told = list(replay.differences(lines, before=besides, skip=_reading))
        _AT_LAST.get(name, lambda _: None)(cluster)
        theirs = lives(lines)
        most = _BEGINNING.get(name)
        wanted = {
            pod: lasting(life)[:most] for pod, life in theirs.items() if only is None or pod in only
        }

        def ours():
            found = moments(cluster.history("pods", namespace))
            return {pod: lasting(life)[:most] for pod, life in found.items() if pod in wanted}

        with contextlib.suppress(AssertionError):
            cluster.wait_for("pods", lambda _: ours() == wanted, timeout=10)
        assert ours() == wanted
    assert told == []


def _reading(line):
    # what a get tells is a matter of time; budgets need a controller's time to count
    return line["request"]["method"] == "GET" or "deviat" in line.get("note", "")


def _classes(cluster):
    for name, value in (("low", 10), ("high", 1000)):
        cluster.create("priorityclasses", {"metadata": {"name": name}, "value": value})
