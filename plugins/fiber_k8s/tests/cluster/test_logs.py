"""Logs of hollow pods, asked for as on a real cluster."""

import re

import pytest

from cluster import Act, Cluster
from cluster.replay import Replay

_NEVER = ("ErrImageNeverPull", "Container image is not present with pull policy of Never")


@pytest.fixture
def kube():
    acts = {"noimage": Act(refused=_NEVER)}
    with Cluster.start(script=lambda pod: acts.get(pod["metadata"]["name"], Act())) as cluster:
        yield cluster


def start(kube, namespace, name, **spec):
    containers = [{"name": "main", "image": "app:1"}]
    thing = {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
    kube.create("pods", thing, namespace)

    def begun(pods):
        return any(pod["metadata"]["name"] == name and "startTime" in pod["status"] for pod in pods)

    kube.wait_for("pods", begun)


def test_parts_of_a_log(kube, recorded):
    lines = recorded("logs-exec/01-logs")
    namespace = re.search(r"/namespaces/(rec-[^/?]+)", str(lines))[1]
    kube.add_namespace(namespace)
    start(kube, namespace, "demo")
    kube.wait_for("pods", lambda pods: pods[0]["status"]["phase"] == "Running")
    kube.say("demo", "".join(f"{way} {n}\n" for way in ("out", "err") for n in range(6)), namespace)

    # what came later, and when, is told by the recording alone
    def skip(line):
        query = line["request"]["path"]
        return any(word in query for word in ("follow", "victim", "timestamps", "sinceSeconds=1"))

    at_end = [line["t"] for line in lines if line["type"] == "http"][-1]
    gone = {at_end: lambda: kube.delete_pod("demo", namespace, grace=0)}
    assert list(Replay(kube).differences(lines, skip=skip, before=gone)) == []


def test_logs_that_do_not_exist_yet(kube, recorded):
    lines = recorded("logs-exec/02-logs-not-started")
    namespace = re.search(r"/namespaces/(rec-[^/?]+)", str(lines))[1]
    kube.add_namespace(namespace)
    kube.create("pods", _two("two", containers=2), namespace)
    kube.wait_for("pods", lambda pods: pods[0]["status"]["phase"] == "Running")
    kube.pause_scheduling()
    kube.create("pods", _two("unscheduled", containers=1), namespace)

    def skip(line):
        name = re.search(r"/pods/([a-z]+)", line["request"]["path"])
        return name is None or name[1] not in {"unscheduled", "two"}

    assert list(Replay(kube).differences(lines, skip=skip)) == []


def _two(name, containers):
    boxes = [{"name": one, "image": "app:1"} for one in ("main", "side")[:containers]]
    return {"metadata": {"name": name}, "spec": {"containers": boxes}}
