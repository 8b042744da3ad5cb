"""The fake of a cluster answers as a real one was recorded to: refusals, lives of pods, logs."""

import contextlib
import json
import re
import time

import pytest

from cluster import Act, Cluster
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from k8s_world import RECORDINGS, recorded

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"no recordings in {RECORDINGS}")


class Replay:
    """Sends the requests of a recording to a fake, by the plugin's own client."""

    def __init__(self, cluster, folder):
        self._cluster, self._folder = cluster, folder
        # recorded uids by ours
        self._uids = {}

    def differences(self, lines, *, skip=lambda _: False, before=lambda _: None, **users):
        """Exchanges that are answered otherwise.

        Args:
            lines: of the recording.
            skip: exchanges that are left out.
            before: what to do before an exchange.
            users: recorded ones, by the names that ``Cluster.token`` understands.
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
                found += self._exchange(line, {"admin": "admin", **users})
        return found

    def _exchange(self, line, users):
        request, theirs = line["request"], line["response"]
        text = json.dumps([request["path"], request.get("body")])
        for uid, ours in self._uids.items():
            text = text.replace(uid, ours)
        path, body = json.loads(text)
        user = users[line.get("user", "admin")]
        config = self._cluster.write_kubeconfig(self._folder / "config", user=user)
        with contextlib.closing(Client(K8sConfig(kubeconfig=str(config)))) as client:
            try:
                made = client.call(request["method"], path, "replay", body=body)
            except ApiError as error:
                is_same = error.status == theirs["status"] and theirs["body"]["message"] in str(
                    error
                )
                return [] if is_same else [f"{line}: {error}"]
        if request["method"] == "POST" and path.endswith("/pods"):
            self._uids[theirs["body"]["metadata"]["uid"]] = made["metadata"]["uid"]
        return [] if theirs["status"] < 400 else [f"{line}: {made}"]


def namespace_of(lines):
    return re.search(r"/namespaces/(rec-[^/? ]+)", json.dumps(lines))[1]


def test_rights_are_refused(tmp_path):
    lines = recorded("errors/01-unauthorized-forbidden")
    namespace = namespace_of(lines)

    def skip(line):
        # others are of kinds and reviews that nobody asks for, or not by credentials
        others = ("rulesreview", "selfsubjectreviews", "/jobs", "watch=true", "exec")
        is_other = any(word in line["request"]["path"] for word in others)
        return is_other or line["user"] not in {"no-role", "reader"}

    with Cluster.start() as cluster:
        cluster.add_namespace(namespace)
        rule = {"apiGroups": [""], "verbs": ["get", "list", "watch"], "resources": ["pods"]}
        users = {
            name: cluster.add_account(name, rules, namespace)
            for name, rules in (("no-role", []), ("reader", [rule]))
        }
        assert Replay(cluster, tmp_path).differences(lines, skip=skip, **users) == []


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
def test_a_pod_lives_as_it_did_on_a_real_cluster(name, tmp_path):
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
        told = Replay(cluster, tmp_path).differences(lines, before=before, skip=is_other)
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
