"""Pods of specs, by settings and a template, and what they inherit from the parent's pod."""

import re

import pytest
from kubernetes import client as models

import k8s_world
from fiber.backend_parts.containers import UNNEEDED_CAPABILITIES
from fiber.exceptions import SubmitError
from fiber.model import ResourceRequest, Volume
from fiber_k8s.manifest import CONTAINER, PodContext
from fiber_k8s.pod_group import PodGroup
from k8s_world import LEASE, container, env, make, parent, process, spec

GPUS = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}


class TestNames:
    @pytest.mark.parametrize(
        "name", ["Process-3", "MyTrainer:1", "eins zwei", "ü", "", "x" * 200, "a" * 53 + "-b", "9"]
    )
    def test_any_name_of_a_program_makes_a_host_name(self, name):
        made = make(process(name=name))["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", made)
        assert len(made) <= 63

    def test_it_begins_as_the_process_is_called_and_two_of_one_name_are_two(self):
        names = [make()["metadata"]["name"] for _ in range(2)]
        assert all(re.fullmatch(r"process-3-[0-9a-f]{8}", name) for name in names)
        assert names[0] != names[1]

    @pytest.mark.parametrize("text", ["-x-", "ein Wort", "é" * 9, "x" * 99, ".a_b-"])
    def test_any_words_make_a_label(self, text):
        labels = make(process(labels={"process": text}))["metadata"]["labels"]
        for value in labels.values():
            assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", value)
            assert len(value) <= 63


@pytest.mark.parametrize("around", [PodContext(), PodContext(parent=parent())])
def test_a_process_has_time_to_hand_back_its_work_and_is_told(around):
    pod = make(pod_context=around, grace=45)
    assert env(pod)["FIBER_GRACE"] == "45"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 45
    assert "FIBER_GRACE" not in env(make(spec(), around))


CAPABILITIES = list(UNNEEDED_CAPABILITIES)
NO_MORE = {"allowPrivilegeEscalation": False}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
REDUCED = {**NO_MORE, "capabilities": {"drop": CAPABILITIES}, **SECCOMP}
RESTRICTED = {**REDUCED, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}


class TestSecurity:
    @pytest.mark.parametrize(
        "setting, of_a_process, of_a_program",
        [("reduced", REDUCED, None), ("restricted", RESTRICTED, RESTRICTED), ("image", None, None)],
    )
    def test_containers_do_without_what_the_setting_says(self, setting, of_a_process, of_a_program):
        found = [container(make(job, security=setting)) for job in (process(), spec())]

        assert [one.get("securityContext") for one in found] == [of_a_process, of_a_program]
        assert (setting == "reduced") is (container(make()) == found[0])

    @pytest.mark.parametrize(
        "own, pod_wide, found",
        [
            ({"runAsUser": 7}, {}, RESTRICTED),
            ({}, {"runAsUser": 7}, RESTRICTED),
            ({"runAsUser": 0}, {"runAsUser": 7}, REDUCED),
            ({"privileged": True}, {}, {}),
            (
                {"capabilities": {"add": ["AUDIT_WRITE"]}},
                {"seccompProfile": {"type": "Unconfined"}},
                {**NO_MORE, "capabilities": {"add": ["AUDIT_WRITE"], "drop": CAPABILITIES[1:]}},
            ),
            ({"capabilities": {"add": ["CAP_SYS_ADMIN"], "drop": []}}, {}, SECCOMP),
        ],
        ids=["a user", "a pod's user", "root", "privileged", "a capability", "more privileges"],
    )
    @pytest.mark.parametrize("by_parent", [True, False], ids=["parent", "template"])
    def test_what_the_parents_pod_or_a_template_says_counts_more(
        self, own, pod_wide, found, by_parent
    ):
        box = {"name": "a", "image": "b", "securityContext": own}
        pod = {"spec": {"securityContext": pod_wide, "containers": [box]}}
        around = {"parent": {**pod, "metadata": {}}} if by_parent else {"template": pod}

        made = container(make(pod_context=PodContext(**around)))
        assert made["securityContext"] == {**own, **found}


class TestResources:
    def test_what_was_asked_for_is_requested_and_limited(self):
        wanted = ResourceRequest(cpu=1.5, memory=2048, devices={"gpu": 2})
        found = container(make(process(resources=wanted), PodContext(device_classes=GPUS)))
        amounts = {"cpu": "1500m", "memory": "2048Mi", "nvidia.com/gpu": "2"}
        assert found["resources"] == {"requests": amounts, "limits": amounts}

    @pytest.mark.parametrize("limits, more", [("none", {}), ("memory", {"memory": "512Mi"})])
    def test_limits_can_be_left_out_but_not_those_of_devices(self, limits, more):
        job = process(resources=ResourceRequest(cpu=1, memory=512, devices={"tpu": 1}))
        found = container(make(job, PodContext(device_classes=GPUS), limits=limits))
        assert found["resources"]["limits"] == {"google.com/tpu": "1", **more}


class TestProgram:
    def test_words_are_not_taken_for_variables_of_the_cluster(self):
        found = make(spec(argv=("echo", "$(HOME) $$ $x"), env={"A": "$(B)"}))
        assert container(found)["command"][-1] == "$$(HOME) $$$$ $$x"
        assert env(found)["A"] == "$$(B)"

    def test_claims_and_folders_of_the_node_are_mounted(self):
        volumes = (
            Volume(source="nfs", path="/persistent"),
            Volume(source="data", path="/data", read_only=True),
            Volume(source="/mnt/disk", path="/disk"),
        )
        found = make(process(volumes=volumes), PodContext(parent=parent()))
        added = {one["name"]: one for one in found["spec"]["volumes"]}
        assert added["fiber-0"]["persistentVolumeClaim"] == {"claimName": "nfs"}
        assert added["fiber-1"]["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}
        assert added["fiber-2"]["hostPath"] == {"path": "/mnt/disk"}
        paths = [one["mountPath"] for one in container(found)["volumeMounts"]]
        assert paths == ["/code", "/persistent", "/data", "/disk"]


TEMPLATE = {
    "metadata": {"labels": {"team": "rl", "fiber/run": "other"}, "name": "mine"},
    "spec": {
        "restartPolicy": "Always",
        "nodeSelector": {"zone": "a", "pool": "small"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            {
                "name": "whatever",
                "image": "fallback:1",
                "env": [{"name": "T", "value": "1"}, {"name": "PLAIN", "value": "template"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "resources": {"requests": {"cpu": "100m", "ephemeral-storage": "1Gi"}},
            },
            {"name": "watcher", "image": "watcher:1"},
        ],
    },
}


class TestTemplate:
    def test_fibers_fields_take_precedence_and_the_others_are_kept(self):
        job = process(resources=ResourceRequest(cpu=2))
        pod = make(job, PodContext(parent=parent(), template=TEMPLATE, owner=LEASE))
        metadata, found = pod["metadata"], pod["spec"]
        own, other = found["containers"]

        assert found["restartPolicy"] == "Never"
        assert found["enableServiceLinks"] is False
        assert metadata["labels"]["fiber/run"] == "0a1b2c3d"
        assert metadata["name"].startswith("process-3-")
        assert own["image"] == "registry.example/team/app:3"
        assert found["nodeSelector"] == {"pool": "big", "zone": "a"}
        assert {one["name"]: one.get("value") for one in own["env"]}["PLAIN"] == "one"

        assert metadata["labels"]["team"] == "rl"
        assert {"key": "spot", "operator": "Exists"} in found["tolerations"]
        assert [one["name"] for one in found["volumes"]] == ["shm", "data", "code"]
        assert own["name"] == CONTAINER
        assert {"name": "T", "value": "1"} in own["env"]
        assert own["resources"]["requests"] == {"cpu": "2000m", "ephemeral-storage": "1Gi"}
        assert other == {"name": "watcher", "image": "watcher:1"}

    def test_without_a_parent_it_names_the_image(self):
        pod = make(pod_context=PodContext(template=TEMPLATE))
        assert pod["spec"]["containers"][0]["image"] == "fallback:1"


def test_the_scheduler_of_a_groups_pods_may_be_named_by_a_template():
    gang = PodGroup(kind="scheduler-plugins", name="ring", size=4)
    template = {"spec": {"schedulerName": "default-scheduler"}}
    pod = make(pod_context=PodContext(gang=gang, template=template))
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "ring"


class TestInheritance:
    @pytest.fixture
    def pod(self):
        return make(pod_context=PodContext(parent=parent(), owner=LEASE))

    def test_a_child_has_what_its_parent_was_given_and_not_what_is_the_parents_alone(self, pod):
        copied = {
            *("affinity", "nodeSelector", "tolerations", "runtimeClassName", "schedulerName"),
            *("imagePullSecrets", "priorityClassName", "securityContext", "serviceAccountName"),
            "dnsPolicy",
        }
        own = {
            *("containers", "initContainers", "volumes", "restartPolicy", "enableServiceLinks"),
            *("terminationGracePeriodSeconds", "automountServiceAccountToken"),
        }
        assert pod["spec"].keys() == copied | own
        assert {name: pod["spec"][name] for name in copied} == {
            name: k8s_world.PARENT["spec"][name] for name in copied
        }

    def test_programs_and_no_process_of_theirs_get_the_token_of_their_account(self):
        jobs = [process(), process(entry=None)]
        for worker_token, expected in ((False, [False, True]), (True, [True, True])):
            around = PodContext(parent=parent())
            pods = [make(job, around, worker_token=worker_token) for job in jobs]
            assert [pod["spec"]["automountServiceAccountToken"] for pod in pods] == expected

    def test_and_so_has_its_container(self, pod):
        copied = {"image", "imagePullPolicy", "envFrom", "workingDir"}
        own = {"name", "command", "env", "volumeMounts", "securityContext"}
        theirs = k8s_world.PARENT["spec"]["containers"][0]
        assert container(pod).keys() == copied | own
        assert {name: container(pod)[name] for name in copied} == {
            name: theirs[name] for name in copied
        }

    def test_not_the_labels_owners_and_finalizers_by_which_a_controller_would_end_it(self, pod):
        metadata = pod["metadata"]
        assert metadata.keys() == {"name", "labels", "annotations", "ownerReferences"}
        assert not {"app", "pod-template-hash", "job-name"} & metadata["labels"].keys()
        assert metadata["ownerReferences"] == [LEASE]

    def test_variables_come_along_and_the_childs_own_win(self):
        job = process(env={"PLAIN": "two", "MINE": "3"}, unset_env=frozenset({"HOST"}))
        found = env(make(job, PodContext(parent=parent())))
        assert found["PLAIN"] == "two"
        assert found["MINE"] == "3"
        assert "HOST" not in found
        assert "FIBER_BOOTSTRAP" not in found
        # one about resources is about the child's own
        assert found["CPUS"] == {"resourceFieldRef": {"resource": "limits.cpu"}}

    def test_volumes_and_mounts_come_along_but_for_the_token_and_those_of_sidecars(self, pod):
        assert [one["name"] for one in pod["spec"]["volumes"]] == ["data", "code"]
        assert [one["mountPath"] for one in container(pod)["volumeMounts"]] == ["/data", "/code"]

    def test_what_fills_a_mounted_folder_runs_again_and_nothing_else_does(self, pod):
        assert [one["name"] for one in pod["spec"]["initContainers"]] == ["clone"]
        mounts = pod["spec"]["initContainers"][0]["volumeMounts"]
        assert [one["name"] for one in mounts] == ["code"]

    def test_the_inherited_container_is_the_first_or_the_default_one_or_fibers_or_the_one_named(
        self,
    ):
        def image(pod, own=None, **settings):
            around = PodContext(parent=pod, container=own)
            return container(make(pod_context=around, **settings))["image"]

        pod = parent()
        assert image(pod) == "registry.example/team/app:3"
        assert image(pod, container="proxy") == "proxy:1"
        # one that was added to the pod later is none to inherit
        assert image(pod, "debugger-x2x") == "registry.example/team/app:3"
        # meshes put their proxies first
        pod["spec"]["containers"].reverse()
        assert image(pod) == "proxy:1"
        assert image(pod, "main") == "registry.example/team/app:3"
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "main"
        assert image(pod) == "registry.example/team/app:3"
        pod = parent()
        pod["spec"]["containers"].append({"name": "fiber", "image": "own:1"})
        assert image(pod) == "own:1"
        with pytest.raises(SubmitError, match="no container 'none', it has main, proxy"):
            image(parent(), container="none")

    def test_volumes_of_parents_that_were_started_with_some_keep_their_names(self):
        volumes = (Volume(source="nfs", path="/persistent"), Volume(source="two", path="/two"))
        program = make(spec(volumes=volumes), PodContext(secret="fiber-r", sealed="Zm9v"))
        volume = Volume(source="three", path="/three")
        around = PodContext(parent=program, secret="fiber-s", sealed="Zm9v")
        child = make(process(volumes=(volume,)), around)
        names = [one["name"] for one in child["spec"]["volumes"]]
        assert names == ["fiber-0", "fiber-1", "fiber-2", "fiber-run"]
        assert child["spec"]["volumes"][-1]["secret"]["secretName"] == "fiber-s"
        paths = [one["mountPath"] for one in container(child)["volumeMounts"]]
        assert paths == ["/persistent", "/two", "/three", "/var/run/secrets/fiber"]

    def test_another_image_has_its_own_pull_policy(self):
        found = container(make(process(image="other:1"), PodContext(parent=parent())))
        assert found["image"] == "other:1"
        assert "imagePullPolicy" not in found

    def test_the_parents_object_is_left_alone(self):
        original = parent()
        gang = PodGroup(kind="volcano", name="g", size=2)
        make(pod_context=PodContext(parent=original, gang=gang))
        assert original == k8s_world.PARENT


@pytest.mark.parametrize("inherited", [None, parent()], ids=["no parent", "parent"])
@pytest.mark.parametrize("job", [process(), spec(argv=("echo", "$(x)"))], ids=["process", "program"])  # fmt: skip
def test_bodies_round_trip_through_the_official_clients_models(inherited, job):
    classes = {"gpu": "nvidia.com/gpu"}
    private = {"secret": "fiber-r", "sealed": "Zm9v", "device_classes": classes}
    around = PodContext(parent=inherited, owner=LEASE, template=TEMPLATE, **private)
    pod = make(job, around, pull_secrets=("extra",))
    api = models.ApiClient()
    model = api._ApiClient__deserialize(pod, "V1Pod")
    assert api.sanitize_for_serialization(model) == pod


def test_other_nodes_than_lost_ones_are_preferred_and_an_affinity_of_the_parents_stays():
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in "ab"]
    away = {"weight": 100, "preference": {"matchFields": fields}}
    job = process(avoid_hosts=("a", "b"))
    assert make(job)["spec"]["affinity"] == {"nodeAffinity": {key: [away]}}

    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}
    theirs = {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
        "nodeAffinity": {key: [{"weight": 1, "preference": zone}]},
    }
    above = parent()
    above["spec"]["affinity"] = theirs
    found = make(job, PodContext(parent=above))["spec"]["affinity"]
    assert found["podAffinity"] == theirs["podAffinity"]
    assert found["nodeAffinity"][key] == [*theirs["nodeAffinity"][key], away]
