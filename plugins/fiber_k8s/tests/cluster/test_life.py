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
    "04a-oom-killed": {"demo": Act(oom=True)},
    "09-eviction-api": {"fin": Act(code=0)},
    "10-noexecute-taint": {"late": Act(code=0)},
    "11-drain": {"new": Act(code=0)},
    "12-delete-while-pending": {"no-image": Act(refused=_NEVER)},
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
}
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
    """A life without what is fleeting."""
    return [word for word in told if not any(rule.fullmatch(word) for rule in _FLEETING)]


@pytest.mark.parametrize(
    "name, only",
    [
        ("01-success-exit-0", None),
        ("02-exit-7", None),
        ("03a-delete-sigterm-handled", None),
        ("04a-oom-killed", None),
        ("07-unschedulable", None),
        ("09-eviction-api", None),
        ("10-noexecute-taint", ["plain", "stays", "late"]),
        ("11-drain", None),
        ("12-delete-while-pending", ["unscheduled", "no-image", "no-volume"]),
        ("13-preemption", ["low-1", "low-2", "high", "polite"]),
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
        cluster.add_namespace(namespace)
        _classes(cluster)
        if name == "19-nodename-set":
            cluster.add_gpus(2)
        replay = Replay(cluster, pause=0.3)
        besides = {at: lambda do=do: do(cluster) for at, do in _BESIDES.get(name, {}).items()}
        told = list(replay.differences(lines, before=besides, skip=_reading))
        _AT_LAST.get(name, lambda _: None)(cluster)
        theirs = lives(lines)
        wanted = {pod: lasting(life) for pod, life in theirs.items() if only is None or pod in only}

        def ours():
            found = moments(cluster.history("pods", namespace))
            return {pod: lasting(life) for pod, life in found.items() if pod in wanted}

        with contextlib.suppress(AssertionError):
            cluster.wait_for("pods", lambda _: ours() == wanted, timeout=5)
        assert ours() == wanted
    assert told == []


def _reading(line):
    # what a get tells is a matter of time; budgets need a controller's time to count
    return line["request"]["method"] == "GET" or "deviat" in line.get("note", "")


def _classes(cluster):
    for name, value in (("low", 10), ("high", 1000)):
        cluster.create("priorityclasses", {"metadata": {"name": name}, "value": value})
