"""Fields that a child inherits from its parent's pod."""

import pytest

import k8s_world
from fiber.exceptions import SubmitError
from fiber.model import Volume
from fiber_k8s.manifest import PodContext
from fiber_k8s.pod_group import PodGroup
from k8s_world import LEASE, container, env, make, parent, process, spec


class TestInheritance:
    @pytest.fixture
    def pod(self):
        return make(pod_context=PodContext(parent=parent(), owner=LEASE))

    @pytest.mark.parametrize(
        "field",
        [
            *("affinity", "nodeSelector", "tolerations", "runtimeClassName", "schedulerName"),
            *("imagePullSecrets", "priorityClassName", "securityContext", "serviceAccountName"),
            *("dnsPolicy", "automountServiceAccountToken"),
        ],
    )
    def test_a_child_has_what_its_parent_was_given(self, pod, field):
        assert pod["spec"][field] == k8s_world.PARENT["spec"][field]

    @pytest.mark.parametrize(
        "field", ["image", "imagePullPolicy", "envFrom", "securityContext", "workingDir"]
    )
    def test_and_what_its_container_was_given(self, pod, field):
        assert container(pod)[field] == k8s_world.PARENT["spec"]["containers"][0][field]

    @pytest.mark.parametrize(
        "field",
        [
            *("nodeName", "hostname", "subdomain", "serviceAccount", "activeDeadlineSeconds"),
            *("priority", "preemptionPolicy", "overhead", "schedulingGates", "readinessGates"),
            *("resourceClaims", "ephemeralContainers", "topologySpreadConstraints"),
        ],
    )
    def test_not_what_the_cluster_wrote_or_what_is_the_parents_alone(self, pod, field):
        assert field not in pod["spec"]

    @pytest.mark.parametrize(
        "field",
        [
            *("args", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"),
            *("stdin", "tty", "resources", "terminationMessagePath"),
        ],
    )
    def test_nor_what_only_the_parents_program_is_for(self, pod, field):
        assert field not in container(pod)

    def test_nor_labels_owners_and_finalizers_by_which_a_controller_would_end_it(self, pod):
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

    def test_a_variable_about_resources_is_about_the_childs_own(self, pod):
        assert env(pod)["CPUS"] == {"resourceFieldRef": {"resource": "limits.cpu"}}

    def test_volumes_and_mounts_come_along_but_for_the_token_and_those_of_sidecars(self, pod):
        assert [one["name"] for one in pod["spec"]["volumes"]] == ["data", "code"]
        assert [one["mountPath"] for one in container(pod)["volumeMounts"]] == ["/data", "/code"]

    def test_what_fills_a_mounted_folder_runs_again_and_nothing_else_does(self, pod):
        assert [one["name"] for one in pod["spec"]["initContainers"]] == ["clone"]
        mounts = pod["spec"]["initContainers"][0]["volumeMounts"]
        assert [one["name"] for one in mounts] == ["code"]

    def test_another_container_can_be_the_one_that_is_inherited(self):
        found = make(pod_context=PodContext(parent=parent()), container="proxy")
        assert container(found)["image"] == "proxy:1"

    def test_meshes_put_their_proxies_first_and_the_programs_container_is_found(self):
        pod = parent()
        pod["spec"]["containers"].reverse()
        assert container(make(pod_context=PodContext(parent=pod)))["image"] == "proxy:1"
        found = make(pod_context=PodContext(parent=pod, container="main"))
        assert container(found)["image"] == "registry.example/team/app:3"
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "main"
        found = make(pod_context=PodContext(parent=pod))
        assert container(found)["image"] == "registry.example/team/app:3"

    def test_a_container_that_was_added_to_the_pod_later_is_none_to_inherit(self):
        found = make(pod_context=PodContext(parent=parent(), container="debugger-x2x"))
        assert container(found)["image"] == "registry.example/team/app:3"

    def test_a_child_of_fibers_own_pod_has_the_image_of_fibers_container(self):
        pod = parent()
        pod["spec"]["containers"].append({"name": "fiber", "image": "own:1"})
        assert container(make(pod_context=PodContext(parent=pod)))["image"] == "own:1"

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

    def test_a_missing_one_is_named_with_those_that_exist(self):
        with pytest.raises(SubmitError, match="no container 'none', it has main, proxy"):
            make(pod_context=PodContext(parent=parent()), container="none")

    def test_another_image_has_its_own_pull_policy(self):
        found = container(make(process(image="other:1"), PodContext(parent=parent())))
        assert found["image"] == "other:1"
        assert "imagePullPolicy" not in found

    def test_the_parents_object_is_left_alone(self):
        original = parent()
        make(
            pod_context=PodContext(parent=original, gang=PodGroup(kind="volcano", name="g", size=2))
        )
        assert original == k8s_world.PARENT
