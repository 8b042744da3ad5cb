"""Pods of specs."""

import json
import re

import pytest
from kubernetes import client as models

import k8s_world
from fiber.model import ResourceRequest, Volume
from fiber_k8s.config import K8sConfig
from fiber_k8s.manifest import CONTAINER, PodContext, manifest
from fiber_k8s.pod_group import PodGroup
from k8s_world import LEASE, container, env, make, parent, process, spec

GPUS = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "Process-3",
            "MyTrainer:1",
            "eins zwei",
            "ü",
            "",
            "-",
            "x" * 200,
            "a" * 53 + "-b",
            "9",
            "A.B",
        ],
    )
    def test_any_name_of_a_program_makes_a_host_name(self, name):
        made = make(process(name=name))["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", made)
        assert len(made) <= 63

    def test_it_begins_as_the_process_is_called(self):
        assert re.fullmatch(r"process-3-[0-9a-f]{8}", make()["metadata"]["name"])

    def test_two_of_one_name_are_two(self):
        assert make()["metadata"]["name"] != make()["metadata"]["name"]

    def test_labels_name_run_process_and_parent(self):
        job = process(labels={"process": "Process-3", "parent": "0a:1"})
        labels = make(job)["metadata"]["labels"]
        assert labels["fiber/run"] == "0a1b2c3d"
        assert labels["fiber/process"] == "Process-3"
        assert labels["fiber/parent"] == "0a-1"
        assert labels["fiber/kind"] == "process"
        assert labels["app.kubernetes.io/managed-by"] == "fiber"

    @pytest.mark.parametrize("text", ["-x-", "ein Wort", "é" * 9, "x" * 99, ".a_b-"])
    def test_any_words_make_a_label(self, text):
        labels = make(process(labels={"process": text}))["metadata"]["labels"]
        for value in labels.values():
            assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", value)
            assert len(value) <= 63

    def test_words_that_are_no_label_stand_in_annotations(self):
        annotations = make(spec(name="ein Wort", argv=("echo", "a b")))["metadata"]["annotations"]
        assert annotations["fiber/name"] == "ein Wort"
        assert json.loads(annotations["fiber/argv"]) == ["echo", "a b"]


class TestOwnership:
    def test_it_belongs_to_the_runs_lease(self):
        pod = make(pod_context=PodContext(owner=LEASE))
        assert pod["metadata"]["ownerReferences"] == [LEASE]

    def test_detached_jobs_have_no_owner(self):
        assert "ownerReferences" not in make(spec(detached=True))["metadata"]

    def test_nothing_starts_it_again(self):
        assert make(pod_context=PodContext(parent=parent()))["spec"]["restartPolicy"] == "Never"

    def test_services_set_no_variables(self):
        assert make(pod_context=PodContext(parent=parent()))["spec"]["enableServiceLinks"] is False

    def test_it_has_time_to_hand_back_its_work(self):
        assert make(grace=45)["spec"]["terminationGracePeriodSeconds"] == 45


class TestSecurity:
    def test_nothing_is_asked_of_images_by_default(self):
        assert "securityContext" not in container(make())

    def test_the_restricted_standard_is_met(self):
        found = container(make(security="restricted"))["securityContext"]
        assert found == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }

    def test_what_the_parent_has_counts_more(self):
        pod = parent()
        pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": 7, "runAsNonRoot": False}
        found = container(make(pod_context=PodContext(parent=pod), security="restricted"))
        assert found["securityContext"]["runAsUser"] == 7
        assert found["securityContext"]["runAsNonRoot"] is False
        assert found["securityContext"]["allowPrivilegeEscalation"] is False


class TestResources:
    def test_what_was_asked_for_is_requested_and_limited(self):
        wanted = ResourceRequest(cpu=1.5, memory=2048, devices={"gpu": 2})
        found = container(make(process(resources=wanted), PodContext(device_classes=GPUS)))
        amounts = {"cpu": "1500m", "memory": "2048Mi", "nvidia.com/gpu": "2"}
        assert found["resources"] == {"requests": amounts, "limits": amounts}

    def test_a_parents_devices_are_its_own(self):
        assert "resources" not in container(make(pod_context=PodContext(parent=parent())))

    def test_limits_can_be_left_out_but_not_those_of_devices(self):
        wanted = ResourceRequest(cpu=1, memory=512, devices={"tpu": 1})
        found = container(
            make(process(resources=wanted), PodContext(device_classes=GPUS), limits="none")
        )
        assert found["resources"]["limits"] == {"google.com/tpu": "1"}
        found = container(
            make(process(resources=wanted), PodContext(device_classes=GPUS), limits="memory")
        )
        assert found["resources"]["limits"] == {"memory": "512Mi", "google.com/tpu": "1"}

    def test_none_of_a_kind_is_nothing(self):
        wanted = ResourceRequest(devices={"gpu": 0})
        assert "resources" not in container(
            make(process(resources=wanted), PodContext(device_classes=GPUS))
        )


class TestProgram:
    def test_a_process_of_fibers_runs_the_cores_supervisor(self):
        assert container(make(python="/opt/python"))["command"] == ["/opt/python", "-m", "fiber._agent.job"]  # fmt: skip

    def test_another_program_runs_under_a_first_process(self):
        words = container(make(spec(argv=("nvidia-smi", "-L"))))["command"]
        assert words[:2] == ["/bin/sh", "-c"]
        assert words[3] == "python3"
        assert words[-2:] == ["nvidia-smi", "-L"]

    def test_words_are_not_taken_for_variables_of_the_cluster(self):
        found = make(spec(argv=("echo", "$(HOME) $$ $x"), env={"A": "$(B)"}))
        assert container(found)["command"][-1] == "$$(HOME) $$$$ $$x"
        assert env(found)["A"] == "$$(B)"

    def test_what_is_private_is_sealed_and_its_key_mounted(self):
        found = make(pod_context=PodContext(parent=parent(), secret="fiber-r", sealed="Zm9v"))
        assert env(found)["FIBER_BOOTSTRAP"] == "sealed:/var/run/secrets/fiber/key:Zm9v"
        assert found["spec"]["volumes"][-1] == {
            "name": "fiber-run",
            "secret": {"secretName": "fiber-r", "defaultMode": 0o444},
        }
        mount = container(found)["volumeMounts"][-1]
        assert mount == {
            "name": "fiber-run",
            "mountPath": "/var/run/secrets/fiber",
            "readOnly": True,
        }

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
    def made(self, job=None):
        return make(job, PodContext(parent=parent(), template=TEMPLATE, owner=LEASE))

    def test_fibers_fields_take_precedence(self):
        pod = self.made()
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["metadata"]["labels"]["fiber/run"] == "0a1b2c3d"
        assert pod["metadata"]["name"].startswith("process-3-")
        assert pod["spec"]["containers"][0]["image"] == "registry.example/team/app:3"
        assert pod["spec"]["nodeSelector"] == {"pool": "big", "zone": "a"}

    def test_the_other_lines_are_kept(self):
        pod = self.made(process(resources=ResourceRequest(cpu=2)))
        own, other = pod["spec"]["containers"]
        assert pod["metadata"]["labels"]["team"] == "rl"
        assert {"key": "spot", "operator": "Exists"} in pod["spec"]["tolerations"]
        assert [one["name"] for one in pod["spec"]["volumes"]] == ["shm", "data", "code"]
        assert own["name"] == CONTAINER
        assert {one["name"]: one.get("value") for one in own["env"]}["PLAIN"] == "one"
        assert {"name": "T", "value": "1"} in own["env"]
        assert own["resources"]["requests"] == {"cpu": "2000m", "ephemeral-storage": "1Gi"}
        assert other == {"name": "watcher", "image": "watcher:1"}

    def test_without_a_parent_it_names_the_image(self):
        pod = make(pod_context=PodContext(template=TEMPLATE))
        assert pod["spec"]["containers"][0]["image"] == "fallback:1"


class TestGangs:
    def test_kueue(self):
        gang = PodGroup(kind="kueue", name="ring", size=4, queue="team")
        metadata = make(pod_context=PodContext(gang=gang))["metadata"]
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert metadata["labels"]["kueue.x-k8s.io/pod-group-name"] == "ring"
        assert metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "4"
        assert gang.group(60.0, None) is None
        # nobody takes a lost member's place in its group
        assert metadata["annotations"]["kueue.x-k8s.io/retriable-in-group"] == "false"

    def test_volcano(self):
        gang = PodGroup(kind="volcano", name="ring", size=4, queue="team")
        pod = make(pod_context=PodContext(gang=gang))
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "ring"
        group = gang.group(60.0, LEASE)
        assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
        assert group["spec"] == {"minMember": 4, "queue": "team"}
        assert group["metadata"] == {"name": "ring", "ownerReferences": [LEASE]}

    def test_scheduler_plugins(self):
        gang = PodGroup(kind="scheduler-plugins", name="ring", size=4)
        pod = make(pod_context=PodContext(gang=gang))
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "ring"
        group = gang.group(60.0, None)
        assert group["spec"] == {"minMember": 4, "scheduleTimeoutSeconds": 60}

    def test_a_scheduler_of_another_name_is_named_by_the_template(self):
        gang = PodGroup(kind="scheduler-plugins", name="ring", size=4)
        template = {"spec": {"schedulerName": "default-scheduler"}}
        pod = make(pod_context=PodContext(gang=gang, template=template))
        assert pod["spec"]["schedulerName"] == "default-scheduler"


def assert_round_trip(pod):
    class Answer:
        data = json.dumps(pod)

    api = models.ApiClient()
    model = models.V1Pod.from_dict(pod) if hasattr(models.V1Pod, "from_dict") else None
    if model is None:
        model = api.deserialize(Answer(), "V1Pod")
    assert api.sanitize_for_serialization(model) == pod


@pytest.mark.parametrize("has_parent", [True, False])
@pytest.mark.parametrize("job", [process(), spec(argv=("echo", "$(x)"))])
def test_bodies_round_trip_through_the_official_clients_models(has_parent, job):
    around = PodContext(
        parent=parent() if has_parent else None,
        owner=LEASE,
        secret="fiber-r",
        sealed="Zm9v",
        device_classes=GPUS,
        template=TEMPLATE,
    )
    assert_round_trip(manifest(job, K8sConfig(pull_secrets=("extra",)), around))


def test_a_real_parent_makes_a_child_that_the_models_know():
    for _, pod in k8s_world.pods_of("pod-life/01-success-exit-0")[-1:]:
        assert_round_trip(make(pod_context=PodContext(parent=pod, owner=LEASE)))


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_process_gets_its_grace_period_and_a_program_does_not(has_parent):
    around = PodContext(parent=parent() if has_parent else None)
    pod = manifest(process(), K8sConfig(grace=45), around)
    (told,) = [one for one in pod["spec"]["containers"][0]["env"] if one["name"] == "FIBER_GRACE"]
    assert told["value"] == "45"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 45
    program = manifest(spec(), K8sConfig(), around)
    assert "FIBER_GRACE" not in [one["name"] for one in program["spec"]["containers"][0]["env"]]


class TestLostNodes:
    def away(self, *nodes):
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in nodes]
        return {"weight": 100, "preference": {"matchFields": fields}}

    def test_other_nodes_are_preferred(self):
        affinity = make(process(avoid_hosts=("a", "b")))["spec"]["affinity"]
        key = "preferredDuringSchedulingIgnoredDuringExecution"
        assert affinity == {"nodeAffinity": {key: [self.away("a", "b")]}}

    def test_an_affinity_of_the_parents_stays(self):
        zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}
        theirs = {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": zone}
                ]
            },
        }
        above = k8s_world.parent()
        above["spec"]["affinity"] = theirs
        pod = make(process(avoid_hosts=("a",)), PodContext(parent=above))
        found = pod["spec"]["affinity"]
        assert found["podAffinity"] == theirs["podAffinity"]
        key = "preferredDuringSchedulingIgnoredDuringExecution"
        assert found["nodeAffinity"][key] == [*theirs["nodeAffinity"][key], self.away("a")]
