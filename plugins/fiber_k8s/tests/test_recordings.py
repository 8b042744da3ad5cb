"""The fake of a cluster answers as a real one was recorded to: refusals, lives of pods, logs."""

import http.client
import json
import re
import ssl
import time

import attrs
import pytest

from cluster import Act, Cluster
from k8s_world import RECORDINGS, recorded

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"no recordings in {RECORDINGS}")

_NEVER = ("ErrImageNeverPull", 'Container image "no-such-image:1" is not present with pull policy')
_NO_START = ("StartError", "failed to create containerd task: no such file or directory")
_RUNS, _HEARS, _ENDS = Act(on_term=None), Act(on_term=0), Act(code=0)


@attrs.define
class Replay:
    """Sends the requests of a recording to a fake."""

    cluster: Cluster
    #: recorded users, by the names that ``Cluster.token`` understands
    users: dict = attrs.field(factory=dict)
    #: longest wait in a pause of the recording, in seconds
    pause: float = 0.2
    #: recorded words by ours: uids, versions
    words: dict = attrs.field(factory=dict)

    def differences(self, lines, *, skip=lambda _: False, before=None):
        """Exchanges that are answered otherwise.

        Args:
            lines: of the recording.
            skip: exchanges that are left out.
            before: what to do before the exchange of a time.
        """
        found, last = [], 0.0
        for line in lines:
            if line["type"] != "http":
                continue
            gap, last = line["t"] - last, line["t"]
            if gap > 0.3:
                time.sleep(min(gap, self.pause))
            (before or {}).get(line["t"], lambda: None)()
            if not skip(line):
                found += self._exchange(line)
        return found

    def _exchange(self, line):
        request, wanted = line["request"], line["response"]
        status, body = self._send(line.get("user", "admin"), request)
        theirs = wanted.get("body")
        told = f"{line['t']}: {request['method']} {request['path'][:160]}"
        if status != wanted["status"]:
            return [f"{told}: {status}, not {wanted['status']}: {body}"]
        if status < 400:
            self._learn(theirs, body)
            return []
        if not isinstance(theirs, dict) or not isinstance(body, dict):
            return [] if theirs == body else [f"{told}: {body}, not {theirs}"]
        return [
            f"{told}: {name} is {body.get(name)}, not {theirs.get(name)}"
            for name in ("reason", "message", "details", "code")
            if _uncounted(body.get(name)) != _uncounted(theirs.get(name), self.words)
        ]

    def _send(self, user, request):
        host = self.cluster.url.removeprefix("https://")
        context = ssl.create_default_context(cafile=str(self.cluster.authority_file))
        headers = {k: v for k, v in (request.get("headers") or {}).items() if k != "Authorization"}
        if user == "bad-token":
            headers["Authorization"] = "Bearer nobody-issued-this"
        elif user in self.users or user == "admin":
            headers["Authorization"] = f"Bearer {self.cluster.token(self.users.get(user, user))}"
        body = request.get("body")
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        data = None if text is None else self._ours(text).encode()
        connection = http.client.HTTPSConnection(host, context=context, timeout=30)
        try:
            connection.request(request["method"], self._ours(request["path"]), data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = text and answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def _ours(self, text):
        for theirs, ours in self.words.items():
            text = text.replace(theirs, ours)
        return text

    def _learn(self, theirs, ours):
        if isinstance(theirs, dict) and isinstance(ours, dict):
            for name in ("uid", "resourceVersion"):
                there, here = (one.get("metadata", {}).get(name) for one in (theirs, ours))
                if there and here:
                    self.words[there] = here


def _uncounted(told, words=()):
    """What was said, with our words, without the number of a version."""
    text = json.dumps(told)
    for theirs in words:
        text = text.replace(theirs, words[theirs])
    return re.sub(r"(?<=in record \()\d+", "N", text)


def namespace_of(lines):
    return re.search(r"/namespaces/(rec-[^/? ]+)", json.dumps(lines))[1]


@pytest.fixture
def cluster():
    with Cluster.start(script=lambda _: _HEARS) as cluster:
        yield cluster


@pytest.fixture
def start(cluster):
    """Starts a pod in a namespace, and waits until it runs."""

    def make(namespace, name, *containers, **spec):
        containers = [{"name": one, "image": "app:1"} for one in containers or ("main",)]
        spec = {"restartPolicy": "Never", "containers": containers, **spec}
        cluster.create("pods", {"metadata": {"name": name}, "spec": spec}, namespace)
        cluster.wait_for("pods", lambda pods: pods[-1]["status"]["phase"] == "Running")

    return make


class TestRefusals:
    def test_credentials_and_roles(self, cluster, start):
        lines = recorded("errors/01-unauthorized-forbidden")
        namespace = namespace_of(lines)
        cluster.add_namespace(namespace)
        start(namespace, "demo")
        rule = {"apiGroups": [""], "verbs": ["get", "list", "watch"], "resources": ["pods"]}
        replay = Replay(cluster)
        for name, rules in (("no-role", []), ("reader", [rule])):
            replay.users[name] = cluster.add_account(name, rules, namespace)

        def skip(line):
            # of kinds and reviews that nobody asks for
            others = ("rulesreview", "selfsubjectreviews", "/jobs", "fieldSelector")
            is_other = any(word in line["request"]["path"] for word in others)
            return is_other or line.get("user") == "gone-account"

        assert replay.differences(lines, skip=skip) == []

    def test_absence_and_conflict(self, cluster):
        lines = recorded("errors/02-not-found-conflict")
        cluster.add_namespace(namespace_of(lines))

        def skip(line):
            # updates, and changes of a certain version, are not what the plugin does
            return line["request"]["method"] in {"PUT", "PATCH"} or line["t"] >= 5.608

        assert Replay(cluster).differences(lines, skip=skip) == []


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
    "05a-start-error": dict.fromkeys(
        ("not-found", "not-executable", "is-a-directory", "workdir-is-a-file"),
        Act(refused=_NO_START),
    ),
    "07-unschedulable": {"gpu-1": _ENDS},
    "09-eviction-api": {"fin": _ENDS},
    "11-drain": {"new": _ENDS},
    "12-delete-while-pending": {"no-image": Act(refused=_NEVER)},
    "14a-owner-deleted-background": {"owner": _ENDS},
    "14b-owner-deleted-running": {"owner2": _RUNS},
    "17-kubelet-eviction": {"storage": _RUNS, "emptydir": _RUNS},
}
#: what happened on the recorded cluster besides requests: the time of the next request, and what
_BESIDES = {
    "07-unschedulable": {15.825: lambda cluster: cluster.add_gpus(2)},
    "11-drain": {2.071: lambda cluster: cluster.cordon("knode")},
}
#: what happened after the last request
_AT_LAST = {
    "11-drain": lambda cluster: cluster.uncordon("knode"),
    "17-kubelet-eviction": lambda cluster: [
        cluster.kubelet_evict(name, "rec-17-kubelet-eviction", pressure=False)
        for name in ("storage", "emptydir")
    ],
}
#: how much of a life is compared: the rest takes half a minute
_BEGINNING = {"03d-delete-twice": 6}


def life_of(changes):
    """The lives of pods as words, without what is told twice."""
    lives = {}
    for kind, pod in changes:
        status, meta = pod["status"], pod["metadata"]
        words = [
            f"{one['name']}:{_state(one['state'])}" for one in status.get("containerStatuses", ())
        ]
        if "reason" in status:
            words.append(f"reason={status['reason']}")
        if "deletionGracePeriodSeconds" in meta:
            words.append(f"deleting({meta['deletionGracePeriodSeconds']})")
        words += [
            f"{one['type']}={one['status']}:{one.get('reason')}"
            for one in status.get("conditions", ())
            if one["type"] != "PodReadyToStartContainers"
        ]
        word = f"{kind} {status['phase']} {' '.join(sorted(words))}"
        told = lives.setdefault(meta["name"], [])
        # the kubelet forgets why an image was not there while it ends the pod
        if word not in told[-1:] and not re.match(
            r"MODIFIED Pending .*deleting\(30\) main:w", word
        ):
            told.append(word)
    return lives


def _state(state):
    if "terminated" in state:
        return f"{state['terminated']['reason']}({state['terminated']['exitCode']})"
    return f"waiting({state['waiting'].get('reason')})" if "waiting" in state else "running"


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
        ("07-unschedulable", None),
        ("08-active-deadline", ["handles"]),
        ("09-eviction-api", ["plain", "fin"]),
        ("11-drain", None),
        ("12-delete-while-pending", ["unscheduled", "no-image", "no-volume"]),
        ("14a-owner-deleted-background", None),
        ("14b-owner-deleted-running", ["owner2", "c2"]),
        ("17-kubelet-eviction", None),
    ],
)
def test_a_pod_lives_as_it_did_on_a_real_cluster(name, only):
    lines = recorded(f"pod-life/{name}")
    acts, namespace = _ACTS.get(name, {}), namespace_of(lines)
    most = _BEGINNING.get(name)
    events = [
        line["line"] for line in lines if line["type"] == "watch" and line["stream"] == "pods"
    ]
    theirs = life_of(
        (one["type"], one["object"]) for one in events if one["object"].get("kind") == "Pod"
    )
    wanted = {pod: life[:most] for pod, life in theirs.items() if only is None or pod in only}

    def script(pod):
        return acts.get(pod["metadata"]["name"], _HEARS)

    def is_other(line):
        # what a get tells is a matter of time; schema and budgets are not known here
        request = line["request"]
        is_of_budget = re.search("disruptionbudgets|09-eviction-api/pods/b/", request["path"])
        return request["method"] == "GET" or line["response"]["status"] == 422 or is_of_budget

    with Cluster.start(script=script, capacity={"cpu": "2", "memory": "4Gi"}) as cluster:
        cluster.add_namespace(namespace)
        besides = {at: lambda do=do: do(cluster) for at, do in _BESIDES.get(name, {}).items()}
        replay = Replay(cluster, pause=2.1 if name == "03d-delete-twice" else 0.3)
        told = replay.differences(lines, before=besides, skip=is_other)
        _AT_LAST.get(name, lambda _: None)(cluster)

        def ours():
            found = life_of(cluster.history("pods", namespace))
            return {pod: life[:most] for pod, life in found.items() if pod in wanted}

        deadline = time.monotonic() + 30
        while ours() != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ours() == wanted
    assert told == []


def test_logs_that_do_not_exist_yet(cluster, start):
    lines = recorded("logs-exec/02-logs-not-started")
    namespace = namespace_of(lines)
    cluster.add_namespace(namespace)
    start(namespace, "two", "main", "side")
    cluster.cordon("knode")
    spec = {"containers": [{"name": "main", "image": "app:1"}]}
    cluster.create("pods", {"metadata": {"name": "unscheduled"}, "spec": spec}, namespace)

    def skip(line):
        name = re.search(r"/pods/([a-z]+)", line["request"]["path"])
        return name is None or name[1] not in {"unscheduled", "two"}

    assert Replay(cluster).differences(lines, skip=skip) == []
