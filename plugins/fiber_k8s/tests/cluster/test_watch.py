"""Watches, faults and counts of the emulated API server, seen by the official client."""

import contextlib
import json
import threading

import pytest
from kubernetes import client, watch

from cluster import Act, Cluster
from cluster.replay import Replay


@pytest.fixture(scope="module")
def kube():
    with Cluster.start(nodes=["one", "two"], bookmark_every=0.2) as cluster:
        yield cluster


@pytest.fixture
def core(kube):
    with contextlib.closing(kube.client_for()) as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def maps(core):
    """Makes a config map with labels; all are gone at the end."""

    def make(name, **labels):
        body = {"metadata": {"name": name, "labels": {"test": "yes", **labels}}}
        return core.create_namespaced_config_map("default", body)

    yield make
    core.delete_collection_namespaced_config_map("default", label_selector="test=yes")


def raw(core, **options):
    """The lines of a watch of config maps, until it ends."""
    answer = core.list_namespaced_config_map(
        "default", watch=True, _preload_content=False, **{"timeout_seconds": 1, **options}
    )
    try:
        return [json.loads(line) for line in answer.data.decode().splitlines()]
    finally:
        answer.release_conn()


def told(lines):
    return [(line["type"], line["object"]["metadata"].get("name")) for line in lines]


def test_a_watch_goes_on_from_a_list(core, maps):
    maps("before")
    version = core.list_namespaced_config_map("default").metadata.resource_version
    maps("after")
    core.delete_namespaced_config_map("after", "default")
    found = told(raw(core, resource_version=version))
    assert found == [("ADDED", "after"), ("DELETED", "after")]


def test_an_object_that_stops_matching_is_deleted_for_the_watch(core, maps):
    maps("moves", app="x")
    version = core.list_namespaced_config_map("default").metadata.resource_version
    core.patch_namespaced_config_map("moves", "default", {"metadata": {"labels": {"app": "y"}}})
    core.patch_namespaced_config_map("moves", "default", {"metadata": {"labels": {"app": "x"}}})
    found = raw(core, resource_version=version, label_selector="app=x")
    assert told(found) == [("DELETED", "moves"), ("ADDED", "moves")]
    # it is shown as it last matched, under the version at which it left
    assert found[0]["object"]["metadata"]["labels"]["app"] == "x"
    assert int(found[0]["object"]["metadata"]["resourceVersion"]) > int(version)


def test_a_forgotten_version_is_gone(kube, core, maps):
    version = core.list_namespaced_config_map("default").metadata.resource_version
    maps("one")
    kube.expire()
    (line,) = raw(core, resource_version=version)
    assert line["type"] == "ERROR"
    assert (line["object"]["code"], line["object"]["reason"]) == (410, "Expired")
    assert line["object"]["message"].startswith(f"too old resource version: {version} (")


def test_bookmarks_advance_a_quiet_watch(core, maps):
    version = core.list_namespaced_config_map("default").metadata.resource_version
    found = raw(core, resource_version=version, allow_watch_bookmarks=True)
    assert {line["type"] for line in found} == {"BOOKMARK"}
    assert found[0]["object"]["metadata"] == {"resourceVersion": version}


def test_the_first_events_can_be_asked_for(core, maps):
    maps("there")
    found = raw(
        core,
        send_initial_events=True,
        resource_version_match="NotOlderThan",
        allow_watch_bookmarks=True,
        label_selector="test=yes",
    )
    assert told(found[:1]) == [("ADDED", "there")]
    notes = found[1]["object"]["metadata"]["annotations"]
    assert notes == {"k8s.io/initial-events-end": "true"}


def test_lists_come_in_parts(core, maps):
    for number in range(5):
        maps(f"m{number}")
    first = core.list_namespaced_config_map("default", limit=2, label_selector="test=yes")
    rest = core.list_namespaced_config_map(
        "default", limit=9, label_selector="test=yes", _continue=first.metadata._continue
    )
    names = [item.metadata.name for part in (first, rest) for item in part.items]
    assert names == [f"m{number}" for number in range(5)]


@pytest.mark.parametrize("how", ["cut_watches", "end_watches"])
def test_a_watch_can_be_cut(kube, core, how):
    version = core.list_namespaced_config_map("default").metadata.resource_version
    seen = []

    def read():
        with contextlib.suppress(Exception):
            seen.extend(raw(core, resource_version=version, timeout_seconds=30))
        seen.append("ended")

    reader = threading.Thread(target=read)
    kube.forget_requests()
    reader.start()
    while not kube.requests or not getattr(kube, how)():
        pass
    reader.join(10)
    assert seen == ["ended"]
    assert [call.verb for call in kube.requests] == ["watch"]


def test_an_outage_refuses_and_ends(kube, core):
    kube.create("configmaps", {"metadata": {"name": "kept", "labels": {"test": "yes"}}})
    with kube.outage(), pytest.raises(Exception, match="Max retries"):
        core.list_namespaced_config_map("default", _request_timeout=1)
    found = core.list_namespaced_config_map("default", label_selector="test=yes")
    assert [item.metadata.name for item in found.items] == ["kept"]


def test_a_server_that_was_started_again_has_forgotten(kube, core, maps):
    version = core.list_namespaced_config_map("default").metadata.resource_version
    maps("meanwhile")
    with kube.outage(restarts=False):
        pass
    assert told(raw(core, resource_version=version)) == [("ADDED", "meanwhile")]
    with kube.outage():
        pass
    (line,) = raw(core, resource_version=version)
    assert line["object"]["reason"] == "Expired"


def test_requests_are_refused_as_by_a_server_under_load(kube):
    replay = Replay(kube)
    request = {"method": "GET", "path": "/api/v1/namespaces/default/pods"}
    with kube.refuse(429, retry_after=7, matching=lambda call: call.verb == "list", times=1) as one:
        status, headers, text = replay.send("admin", request)
        assert (status, dict(headers)["Retry-After"]) == (429, "7")
        assert text == "Too many requests, please try again later.\n"
        assert replay.send("admin", request)[0] == 200
    assert one.count == 1
    with kube.refuse(503):
        assert replay.send("admin", request)[0] == 503
    assert replay.send("admin", request)[0] == 200


def test_tokens_of_service_accounts_expire(kube):
    kube.add_account("soon", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    with contextlib.closing(kube.client_for("default/soon")) as api:
        assert client.CoreV1Api(api).list_namespaced_pod("default").items == []
        kube.expire_tokens()
        with pytest.raises(client.ApiException, match="Unauthorized"):
            client.CoreV1Api(api).list_namespaced_pod("default")


def test_a_lost_node_reports_nothing_until_it_is_back(kube, core):
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": "two"},
        "containers": [{"name": "main", "image": "app:1"}],
    }
    core.create_namespaced_pod("default", {"metadata": {"name": "away"}, "spec": spec})
    kube.wait_for("pods", lambda pods: pods and pods[0]["status"]["phase"] == "Running")
    kube.node_lost("two")
    pod = kube.get("pods", "away")
    ready = [item for item in pod["status"]["conditions"] if item["type"] == "Ready"]
    assert (pod["status"]["phase"], ready[0]["status"]) == ("Running", "False")
    with pytest.raises(client.ApiException, match="connection refused"):
        core.read_namespaced_pod_log("away", "default")
    core.delete_namespaced_pod("away", "default", grace_period_seconds=0)
    assert core.list_namespaced_pod("default").items == []
    kube.node_back("two")


def test_a_hundred_pods_are_counted():
    with Cluster.start(script=lambda _: Act(code=0), capacity={"cpu": "100"}) as cluster:
        with contextlib.closing(cluster.client_for()) as api:
            core = client.CoreV1Api(api)
            for number in range(100):
                spec = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b:1"}]}
                body = {"metadata": {"name": f"p{number}"}, "spec": spec}
                core.create_namespaced_pod("default", body)
            stream = watch.Watch().stream(core.list_namespaced_pod, "default", timeout_seconds=30)
            done = set()
            for event in stream:
                if event["object"].status.phase == "Succeeded":
                    done.add(event["object"].metadata.name)
                if len(done) == 100:
                    break
        counted = [call for call in cluster.requests if call.verb == "create"]
        assert len(counted) == 100
        assert {call.user for call in counted} == {"admin"}
