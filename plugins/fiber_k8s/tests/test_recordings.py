"""The fake of a cluster answers as a real one was recorded to: refusals, lives of pods, logs."""

import http.client
import json
import re
import ssl
import time

import pytest

from cluster import Act, Cluster
from k8s_world import RECORDINGS, recorded

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"no recordings in {RECORDINGS}")


class Replay:
    """Sends the requests of a recording to a fake.

    Args:
        cluster: the fake.
        users: recorded users, by the names that ``Cluster.token`` understands.
    """

    def __init__(self, cluster, **users):
        self._cluster = cluster
        self._users = {"admin": "admin", **users}
        # recorded words by ours: uids, versions
        self._words = {}

    def differences(self, lines, *, skip=lambda _: False, before=lambda _: None):
        """Exchanges that are answered otherwise.

        Args:
            lines: of the recording.
            skip: exchanges that are left out.
            before: what to do before an exchange.
        """
        found, last = [], 0.0
        for line in lines:
            if line["type"] != "http":
                continue
            gap, last = line["t"] - last, line["t"]
            if gap > 0.3:
                # what came between them has a moment here
                time.sleep(0.3)
            before(line)
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
        names = ("reason", "message", "code")
        ours, real = ([one.get(name) for name in names] for one in (body, theirs))
        return [] if ours == real else [f"{told}: {ours}, not {real}"]

    def _send(self, user, request):
        host = self._cluster.url.removeprefix("https://")
        context = ssl.create_default_context(cafile=str(self._cluster.authority_file))
        headers = {k: v for k, v in (request.get("headers") or {}).items() if k != "Authorization"}
        if user == "bad-token":
            headers["Authorization"] = "Bearer nobody-issued-this"
        elif user in self._users:
            headers["Authorization"] = f"Bearer {self._cluster.token(self._users[user])}"
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
        for theirs, ours in self._words.items():
            text = text.replace(theirs, ours)
        return text

    def _learn(self, theirs, ours):
        if isinstance(theirs, dict) and isinstance(ours, dict):
            for name in ("uid", "resourceVersion"):
                there, here = (one.get("metadata", {}).get(name) for one in (theirs, ours))
                if there and here:
                    self._words[there] = here


def namespace_of(lines):
    return re.search(r"/namespaces/(rec-[^/? ]+)", json.dumps(lines))[1]


def test_credentials_and_roles_are_refused():
    lines = recorded("errors/01-unauthorized-forbidden")
    namespace = namespace_of(lines)

    def skip(line):
        # of kinds and reviews that nobody asks for
        others = ("rulesreview", "selfsubjectreviews", "/jobs", "fieldSelector")
        is_other = any(word in line["request"]["path"] for word in others)
        return is_other or line.get("user") == "gone-account"

    with Cluster.start() as cluster:
        cluster.add_namespace(namespace)
        pod = {"metadata": {"name": "demo"}, "spec": {"containers": [{"name": "main"}]}}
        cluster.create("pods", pod, namespace)
        rule = {"apiGroups": [""], "verbs": ["get", "list", "watch"], "resources": ["pods"]}
        users = {
            name: cluster.add_account(name, rules, namespace)
            for name, rules in (("no-role", []), ("reader", [rule]))
        }
        assert Replay(cluster, **users).differences(lines, skip=skip) == []


def life_of(changes):
    """The lives of pods as words of what the plugin reads, without what is told twice."""
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
            if one["type"] in {"PodScheduled", "DisruptionTarget"}
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


NEVER = ("ErrImageNeverPull", 'Container image "no-such-image:1" is not present with pull policy')
NO_START = ("StartError", "failed to create containerd task: no such file or directory")
HEARS, DEAF, ENDS = Act(on_term=0), Act(on_term=None), Act(code=0)
#: what the programs of recorded pods did, by the recordings' and pods' names
LIVES = {
    "01-success-exit-0": {"demo": Act(code=0, log="hello\n")},
    "02-exit-7": {
        "plain": Act(code=7),
        "fallback": Act(code=1, message="Traceback"),
        "file": Act(code=7, message="x" * 4096),
    },
    "03a-delete-sigterm-handled": {"demo": Act(on_term=3)},
    "03b-delete-pid1-ignores-sigterm": {"demo": DEAF},
    "03c-delete-force": {"demo": HEARS},
    "04a-oom-killed": {"demo": Act(oom=True)},
    "05a-start-error": dict.fromkeys(
        ("not-found", "not-executable", "is-a-directory", "workdir-is-a-file"),
        Act(refused=NO_START),
    ),
    "07-unschedulable": {"gpu-1": ENDS},
    "09-eviction-api": {"plain": HEARS, "fin": ENDS},
    "12-delete-while-pending": {
        "unscheduled": HEARS,
        "no-image": Act(refused=NEVER),
        "no-volume": HEARS,
    },
    "14b-owner-deleted-running": {"owner2": DEAF, "c2": HEARS},
    "17-kubelet-eviction": {"storage": DEAF, "emptydir": DEAF},
}


@pytest.mark.parametrize("name", LIVES)
def test_a_pod_lives_as_it_did_on_a_real_cluster(name):
    lines, acts = recorded(f"pod-life/{name}"), LIVES[name]
    namespace = namespace_of(lines)
    events = [
        line["line"] for line in lines if line["type"] == "watch" and line["stream"] == "pods"
    ]
    theirs = life_of(
        (one["type"], one["object"]) for one in events if one["object"].get("kind") == "Pod"
    )
    wanted = {pod: life for pod, life in theirs.items() if pod in acts}

    def is_other(line):
        # what a get tells is a matter of time; schema and budgets are not known here
        request = line["request"]
        is_of_budget = re.search("disruptionbudgets|09-eviction-api/pods/b/", request["path"])
        return request["method"] == "GET" or line["response"]["status"] == 422 or is_of_budget

    def before(line):
        # what happened on the recorded cluster besides requests
        if name == "07-unschedulable" and line["t"] == 15.825:
            cluster.add_gpus(2)

    def script(pod):
        return acts.get(pod["metadata"]["name"], HEARS)

    with Cluster.start(script=script, capacity={"cpu": "2", "memory": "4Gi"}) as cluster:
        cluster.add_namespace(namespace)
        told = Replay(cluster).differences(lines, before=before, skip=is_other)
        if name == "17-kubelet-eviction":
            for pod in acts:
                cluster.kubelet_evict(pod, namespace, pressure=False)

        def ours():
            found = life_of(cluster.history("pods", namespace))
            return {pod: life for pod, life in found.items() if pod in wanted}

        deadline = time.monotonic() + 30
        while ours() != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ours() == wanted
    assert told == []
