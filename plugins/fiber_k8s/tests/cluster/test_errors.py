"""The emulated API server refuses what a real one refuses, with the same messages."""

import re

import attrs
import pytest

from cluster.replay import Replay

_SLEEPS = ["python3", "-u", "-c", "import time; time.sleep(1000)"]
_LISTENS = [
    "python3",
    "-u",
    "-c",
    "import signal,sys,time\nsignal.signal(15,lambda *a:sys.exit(0))\ntime.sleep(100000)",
]
_RESOURCES = {
    "limits": {"cpu": "200m", "memory": "64Mi"},
    "requests": {"cpu": "100m", "memory": "32Mi"},
}


@attrs.define
class Scene:
    """A recording's namespace on the emulated cluster, with its objects."""

    cluster: object
    replay: Replay
    namespace: str

    def pod(self, name, command=("true",), **more):
        spec = {"restartPolicy": "Never", **more.pop("spec", {})}
        container = {"name": "main", "image": "fiber-test:base", "command": list(command), **more}
        container.setdefault("imagePullPolicy", "IfNotPresent")
        thing = {"metadata": {"name": name}, "spec": {**spec, "containers": [container]}}
        return self.cluster.create("pods", thing, self.namespace)

    def running(self, name):
        self.cluster.wait_for(
            "pods",
            lambda pods: any(
                pod["metadata"]["name"] == name and pod["status"]["phase"] == "Running"
                for pod in pods
            ),
        )

    def account(self, name, *rules):
        self.replay.users[name] = self.cluster.add_account(name, rules, self.namespace)


@pytest.fixture
def scene(cluster):
    def make(lines):
        paths = " ".join(line["request"]["path"] for line in lines if "request" in line)
        namespace = re.search(r"/namespaces/(rec-[^/? ]+)", paths)[1]
        return Scene(cluster, Replay(cluster), namespace)

    return make


def differences(scene, lines, **options):
    return "\n".join(scene.replay.differences(lines, **options))


def rule(verbs, *resources):
    return {"apiGroups": [""], "verbs": verbs, "resources": list(resources)}


def test_credentials_and_roles(scene, recorded):
    lines = recorded("errors/01-unauthorized-forbidden")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)
    scene.pod("demo", _LISTENS)
    scene.running("demo")
    scene.account("no-role")
    scene.account("reader", rule(["get", "list", "watch"], "pods"))
    scene.account("gone-account", rule(["list"], "pods"))
    # its token is made while it is there
    scene.replay._token("gone-account")
    (gone,) = [line["t"] for line in lines if line.get("user") == "gone-account"]
    api = scene.cluster.parts.api
    deleted = attrs.evolve(
        _asked("delete", "serviceaccounts", scene.namespace), name="gone-account"
    )
    before = {gone: lambda: scene.cluster.call(lambda: api.delete(deleted, {}))}

    # which paths everybody may read differs between distributions
    def skip(line):
        return "selfsubjectrulesreviews" in line["request"]["path"]

    assert differences(scene, lines, before=before, skip=skip) == ""


def test_absence_and_conflict(scene, recorded):
    lines = recorded("errors/02-not-found-conflict")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)

    def stubborn():
        scene.pod("stubborn", _SLEEPS, spec={"terminationGracePeriodSeconds": 6})
        scene.running("stubborn")
        scene.cluster.delete_pod("stubborn", scene.namespace)

    assert differences(scene, lines, before={5.608: stubborn}) == ""


@pytest.mark.parametrize(
    "name",
    ["errors/04-invalid", "errors/08-limit-range", "errors/11-dry-run", "pod-self/01-defaults"],
)
def test_what_is_invalid_limited_or_left_out(scene, recorded, name):
    lines = recorded(name)
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)

    def skip(line):
        body = line["request"].get("body")
        # large bodies are not in the recordings; a get tells what became of something unrecorded
        return "not kept" in str(body) or line["request"]["method"] == "GET"

    assert differences(scene, lines, skip=skip) == ""


def test_what_cannot_be_changed(scene, recorded):
    lines = recorded("errors/05-immutable-fields")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)
    scene.pod("demo", _LISTENS, resources=_RESOURCES)
    scene.running("demo")
    (owner,) = scene.cluster.objects("nodes")
    scene.replay.words["9eadc0d6-59bf-4d5f-9e41-496ac582a979"] = owner["metadata"]["uid"]
    assert differences(scene, lines) == ""


def test_unknown_fields(scene, recorded):
    lines = recorded("errors/06-field-validation")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)
    deletion = {0.012: lambda: scene.cluster.delete_pod("ignored", scene.namespace, grace=0)}

    # its message has the whole object in it
    def skip(line):
        return line["request"]["method"] == "PATCH"

    assert differences(scene, lines, before=deletion, skip=skip) == ""


def test_quotas(scene, recorded):
    lines = recorded("errors/07-quota")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)
    # a hollow pod is done at once; these were still running when the next one came
    scene.replay.pause = 0.05
    scene.cluster.parts.kubelet.runtime.script = _slowly
    ended = {4.2: lambda: scene.cluster.end("b", scene.namespace)}
    ended[10.207] = lambda: scene.cluster.end("c", scene.namespace)
    assert differences(scene, lines, before=ended) == ""


def test_namespaces_that_go_away(scene, recorded):
    lines = recorded("errors/10-namespace")
    assert differences(scene(lines), lines) == ""


def test_bodies_that_are_too_large(scene, recorded):
    lines = recorded("errors/12-too-large")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)

    def large(kind, size):
        body = {"metadata": {"name": "s"}, "data": {"a": "x" * size}}
        path = f"/api/v1/namespaces/{scene.namespace}/{kind}"
        headers = {"Content-Type": "application/json"}
        request = {"method": "POST", "path": path, "headers": headers, "body": body}
        status, _, answer = scene.replay.send("admin", request)
        return status, answer["message"]

    told = {
        (line["response"]["status"], line["response"]["body"]["message"])
        for line in lines
        if line["type"] == "http" and "not kept" in str(line["request"]["body"])
    }
    assert large("configmaps", 3_200_000) in told
    assert large("configmaps", 1_048_577) in told
    assert large("secrets", 1_398_104) in told
    assert differences(scene, lines, skip=lambda x: "not kept" in str(x["request"]["body"])) == ""


def test_versions_that_are_too_old_or_none(scene, recorded):
    lines = recorded("errors/03-gone")
    scene = scene(lines)
    scene.cluster.add_namespace(scene.namespace)
    data = {f"c{n}": {"metadata": {"name": f"c{n}"}, "data": {"a": "1"}} for n in range(5)}
    for thing in data.values():
        scene.cluster.create("configmaps", thing, scene.namespace)
    scene.cluster.parts.store.version = 7645
    scene.replay.words.update({"7655": "7645", "7680": "7645"})
    gone = {1.041: scene.cluster.expire}

    # exact versions within the cache are not kept here
    def skip(line):
        return line["t"] == 1.045 or line["response"]["status"] == 200

    assert differences(scene, lines, before=gone, skip=skip) == ""


def _slowly(pod):
    from cluster import Act

    return Act(on_term=0)


def _asked(verb, plural, namespace):
    from cluster.kinds import of
    from cluster.requests import Asked

    return Asked(verb=verb, resource=of(plural), namespace=namespace)
