"""The doctor's checks, from outside and from inside a pod, their advice, and the probe in that pod."""

import contextlib
import json
import sys
from pathlib import Path

import pytest

from cluster import Act, Cluster
from commands import ran
from fiber._agent.resources.nvidia import NvidiaProvider
from fiber.model import BackendContext
from fiber_k8s import doctor as checks
from fiber_k8s import probe
from fiber_k8s.backend import K8sBackend
from fiber_k8s.client import ApiError
from fiber_k8s.config import K8sConfig
from fiber_k8s.rbac import RULES, rights

VERSION = checks.metadata.version("fiber-core")
VERSIONS = {"fiber-core": VERSION, "fiber-k8s": VERSION}


class Pods:
    """Scripts of pods: the output of the probe."""

    def __init__(self):
        self.act = None
        self.found = {}

    def will(self, **found):
        self.act = None
        self.found = {
            "python": "3.12.1",
            "executable": "/usr/bin/python3",
            "versions": VERSIONS,
            "failure": "",
            "account": "",
            "allowed": [True] * len(rights()),
            "port": 4711,
            "dialled": "",
            **found,
        }

    def __call__(self, pod):
        if self.act is not None:
            return self.act
        listens = pod["spec"]["containers"][0]["command"][-1] == "listen"
        told = dict(self.found)
        del told["dialled" if listens else "port"]
        log = "a word of the image's\n" + probe.LINE_PREFIX + json.dumps(told) + "\n"
        return Act(log=log, code=None if listens else 0)


@pytest.fixture(scope="module")
def pods():
    return Pods()


@pytest.fixture(scope="module")
def cluster(pods):
    with Cluster.start(script=pods) as made:
        made.add_gpus(2)
        yield made


@pytest.fixture
def doctor(cluster, pods, tmp_path):
    """Run the doctor as a user; return its checks by name, and assert that no pod is left."""
    pods.will()

    def ask(user="admin", image="train:1", **settings):
        path = cluster.write_kubeconfig(tmp_path / "config", user=user)
        context = BackendContext(
            config=K8sConfig(kubeconfig=str(path), **settings),
            providers={"gpu": NvidiaProvider()},
            run_id="0a1b2c3d",
            image=image,
        )
        backend = K8sBackend(context)
        try:
            found = {check.name: check for check in backend.check()}
            # who may not delete has nothing to delete
            with contextlib.suppress(ApiError):
                backend.cleanup("0a1b2c3d")
        finally:
            backend.close()
        cluster.wait_for("pods", lambda there: not there)
        return found

    return ask


def failed(found):
    return {name for name, check in found.items() if not check.ok}


class TestFromOutside:
    def test_a_sound_cluster_has_nothing_to_mend(self, doctor):
        found = doctor()

        assert failed(found) == set()
        assert "namespace default" in found["cluster"].detail
        assert found["gpu devices"].detail == "2 nvidia.com/gpu allocatable"
        assert found["nodes"].detail == "1: 4 CPUs, 8191 MB of memory allocatable"
        assert found["image"].detail.startswith("train:1, pulled as ")
        assert found["python in the image"].detail == "3.12.1, /usr/bin/python3"
        assert found["fiber in the image"].detail.endswith(", as here")

    def test_what_schedules_groups_is_looked_for(self, doctor, cluster):
        found = doctor(gang="volcano")
        assert failed(found) == {"groups"}
        assert "no scheduling.volcano.sh" in found["groups"].detail
        assert "create, delete" in found["you may: podgroups"].detail
        cluster.install("volcano")
        assert failed(doctor(gang="volcano")) == set()

    def test_each_right_that_is_missing_is_reported_with_what_grants_it(self, doctor, cluster):
        rules = [
            {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
            for rule in RULES
        ]
        assert failed(doctor(cluster.add_account("enough", rules))) == set()
        absent = {"secrets", "pods/exec"}
        some = [rule for rule in rules if not absent & set(rule["resources"])]

        found = doctor(cluster.add_account("partly", some))

        assert failed(found) == {"you may: secrets"}
        check = found["you may: secrets"]
        assert check.detail.startswith("not allowed: create, delete (the key of a run")
        assert check.fix == "fiber k8s rbac --namespace default --user YOU | kubectl apply -f -"
        # that one is not needed
        assert "; only for fiber exec and fiber cp" in found["you may: pods/exec"].detail
        assert " --user YOU --exec | kubectl" in found["you may: pods/exec"].fix
        assert found["nodes"].detail.startswith("not known")
        # no pod is tried where that must fail
        assert checks._POD not in found

    def test_a_clock_that_is_wrong_is_reported(self, doctor, monkeypatch):
        monkeypatch.setattr("fiber_k8s.client.Client.now", lambda _: 0.0)

        assert failed(doctor()) == {"clock"}


#: what adds this Fiber to an image
PIP = f"RUN python3 -m pip install fiber-core=={VERSION} fiber-k8s=={VERSION}"

#: what the probe finds, or becomes of its pod; the check that has failed, its detail and its fix
LACKS = {
    "Fiber": (
        {"failure": "ModuleNotFoundError: No module named 'fiber'"},
        *("fiber in the image", "No module named", PIP),
    ),
    "this version of it": (
        {"versions": {"fiber-core": "0.0.1", "fiber-k8s": ""}},
        *("fiber in the image", "fiber-core 0.0.1", PIP),
    ),
    "rights of the pod's account": (
        {"allowed": [right.rule.resource != "leases" for right in rights()]},
        *("default may: leases", "", "| kubectl apply -f -, and fiber run --service-account fiber"),
    ),
    "the cluster": (
        {"account": "timed out", "allowed": None},
        *("the cluster from inside a pod", "timed out", ""),
    ),
    "other pods": ({"dialled": "timed out"}, "pods reach each other", "", "networkpolicy"),
    "Python": (
        Act(code=127, log="sh: python3: not found\n"),
        *(checks._POD, "python3: not found", "FIBER_K8S_PYTHON"),
    ),
    "its image": (
        Act(refused=("ErrImagePull", "train:1: not found")),
        *("image", "train:1: not found", "FIBER_K8S_PULL_SECRETS"),
    ),
}


class TestFromInside:
    def test_without_an_image_the_error_says_how_to_name_one(self, doctor):
        found = doctor(image=None)

        assert failed(found) == {"image"}
        assert "FIBER_IMAGE=NAME fiber doctor k8s" in found["image"].fix

    @pytest.mark.parametrize("change, name, detail, fix", LACKS.values(), ids=LACKS)
    def test_what_a_pod_lacks_or_why_it_does_not_start_is_reported(
        self, doctor, pods, change, name, detail, fix
    ):
        does_not_start = isinstance(change, Act)
        if does_not_start:
            pods.act = change
        else:
            pods.will(**change)

        found = doctor(**({"image_timeout": 0.1} if does_not_start else {}))

        assert failed(found) == {name}
        assert detail in found[name].detail
        assert fix in found[name].fix


def test_a_python_without_fiber_reports_what_is_missing():
    program, asked = Path(probe.__file__).read_text(), json.dumps([["create", "", "pods", ""]])
    done = ran(
        [sys.executable, "-I", "-S", "-c", program, asked, "dial", "127.0.0.1", "1"], check=True
    )

    found = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line.removeprefix(probe.LINE_PREFIX))
    assert found["versions"] == {"fiber-core": "", "fiber-k8s": ""}
    assert found["dialled"] != ""
    # no pod's account is here
    assert found["allowed"] is None
    assert "token" in found["account"]
