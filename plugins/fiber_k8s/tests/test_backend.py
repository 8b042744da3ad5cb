"""Jobs as hollow pods: what is Kubernetes' own of their ends, refusals and removal.

What all backends do is shown by the kit, on containers.
"""

import base64
import collections
import contextlib
import threading
import time

import pytest

from cluster import Act
from fiber.backend_parts.private import read_private
from fiber.exceptions import SubmitError
from fiber.model import Gang, JobState, Reason, ReasonKind, ResourceRequest
from fiber_k8s.in_pod import OwnPod
from fiber_k8s.lifecycle import is_scaling_up
from fiber_k8s.run_objects import micro_time
from k8s_site import set_durations
from wire_world import until

PENDING, RUNNING = JobState.PENDING, JobState.RUNNING


class TestLife:
    def test_a_failure_has_its_last_lines(self, site, backend):
        job = site.start(backend, Act(code=3, log="one\ntwo\n"))
        status = backend.recorder.end(job)
        assert (status.reason, status.exit_code) == (Reason(ReasonKind.EXIT, 3), 3)
        assert status.processes[0].log_tail == ("one", "two")
        assert list(backend.logs(job)) == ["one", "two"]

    def test_a_processs_pod_goes_when_it_has_ended_but_failures_can_be_kept(self, site):
        backend = site.open(keep_failed=True)
        job, good = site.start(backend, Act(oom=True)), site.start(backend, Act(code=0))
        assert backend.recorder.end(job).reason == Reason(ReasonKind.OOM)
        backend.recorder.end(good)

        def kept(pods):
            mine = [one["metadata"] for one in pods if one["metadata"]["name"] in {job.id, good.id}]
            return [(one["name"], one.get("ownerReferences")) for one in mine] == [(job.id, None)]

        site.cluster.wait_for("pods", kept)
        backend.close()
        # its run is over, and it is there
        assert job.id in names(site.cluster.objects("pods"))
        assert site.open().sweep() == [backend.run]
        site.cluster.wait_until_gone(backend.run)

    def test_closing_waits_until_pods_are_gone(self, site, backend):
        # which do not end when asked to
        site.start_running(backend, Act(on_term=None))
        backend.close()
        assert [one for one in site.cluster.left(backend.run) if one.startswith("pods")] == []

    def test_a_pod_that_is_to_be_evicted_is_reported_while_it_works(self, site, backend):
        job = site.start(backend, Act(on_term=None))
        assert not backend.recorder.running(job).draining
        site.cluster.evict(job.id, grace=20)
        status = backend.recorder.until(job, lambda status: status.draining)
        assert (status.state, status.reason) == (RUNNING, Reason(ReasonKind.EVICTED))
        backend.kill(job)
        assert backend.recorder.end(job).reason == Reason(ReasonKind.EVICTED)

    def test_a_pod_that_others_delete_has_ended(self, site, backend):
        job = site.start_running(backend)
        site.cluster.delete_pod(job.id, grace=0)
        status = backend.recorder.end(job)
        assert (status.reason, status.message) == (
            Reason(ReasonKind.UNKNOWN),
            "its pod was deleted by force while it ran",
        )

    @pytest.mark.parametrize("how,kind", [("evict", ReasonKind.EVICTED), ("kubelet_evict", ReasonKind.EVICTED), ("preempt", ReasonKind.PREEMPTED)])  # fmt: skip
    def test_a_preemption_is_reported(self, site, backend, how, kind):
        job = site.start_running(backend)
        getattr(site.cluster, how)(job.id)
        status = backend.recorder.end(job)
        assert status.reason == Reason(kind)
        assert not status.reason.counts_as_attempt

    def test_what_is_private_comes_sealed_with_the_runs_key(self, site, backend, tmp_path):
        job = site.start(backend, private=b"a secret")
        pod = site.cluster.get("pods", job.id)
        variables = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        secret = site.cluster.get("secrets", f"fiber-{backend.run}")
        key = base64.b64decode(secret["data"]["key"])
        (tmp_path / "key").write_bytes(key)
        where = variables["FIBER_BOOTSTRAP"].replace("/var/run/secrets/fiber/key", str(tmp_path / "key"))  # fmt: skip

        assert b"a secret" not in str(pod).encode()
        assert read_private({"FIBER_BOOTSTRAP": where}) == b"a secret"


class TestBelongings:
    def test_a_program_in_a_pod_of_several_containers_is_inherited_from(self, site, monkeypatch):
        containers = [{"name": name, "image": f"{name}:1"} for name in ("proxy", "app")]
        pod = {"metadata": {"name": "master"}, "spec": {"containers": containers}}
        site.cluster.create("pods", pod)
        # as its mounts tell it
        own = OwnPod(namespace="default", name="master", container="app")
        monkeypatch.setattr("fiber_k8s.connection.pod_evidence", lambda _: "a token")
        monkeypatch.setattr("fiber_k8s.connection.read_own_pod", lambda: own)
        job = site.start(site.open(), image=None)
        (one,) = site.cluster.get("pods", job.id)["spec"]["containers"]
        assert one["image"] == "app:1"
        site.cluster.delete_pod("master", grace=0)

    def test_what_outlives_its_starter_stays(self, site):
        first = site.open()
        deaf = Act(on_term=None)
        job = site.start_running(first, deaf, entry=None, argv=("sleep",), detached=True)
        first.close()
        assert job.id in names(site.cluster.objects("pods"))
        second = site.open()
        # whoever removes another program's pods is told nothing of them, and does not wait for that
        set_durations(second, deletion=3600.0)
        assert [one.id for one in second.list(first.run)] == [job.id]
        second.cleanup(first.run)
        site.cluster.wait_until_gone(first.run)


class TestRefusals:
    def test_a_refusal_is_reported_with_the_clusters_message(self, site, backend):
        words = 'pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot'
        told = "violates PodSecurity.*FIBER_K8S_SECURITY"
        with site.cluster.refuse_pods(words), pytest.raises(SubmitError, match=told):
            site.start(backend)

    def test_unknown_fields_of_a_template_are_to_be_refused(self, site, tmp_path):
        path = tmp_path / "pod.yaml"
        path.write_text("spec: {tolerationz: []}")
        site.cluster.forget_requests()
        site.start(site.open(pod_template=str(path)))
        (call,) = [one for one in site.cluster.requests if one.verb == "create" and one.resource == "pods"]  # fmt: skip
        assert call.query["fieldValidation"] == "Strict"

    @pytest.mark.parametrize("reports", [True, False], ids=["1.34", "older scheduler"])
    def test_more_gpus_than_any_node_has_fail_with_the_schedulers_words(self, site, reports):
        with contextlib.nullcontext() if reports else site.cluster.older_scheduler():
            backend = site.open(unschedulable_timeout=0.3)
            job = site.start(backend, resources=ResourceRequest(devices={"gpu": 99}))
            status = backend.recorder.end(job)
        assert status.reason == Reason(ReasonKind.UNSCHEDULABLE)
        assert "Insufficient nvidia.com/gpu" in status.message
        assert ("not helpful" in status.message) is reports
        site.cluster.wait_for("pods", lambda pods: job.id not in names(pods))

    def test_where_nodes_are_unknown_a_warning_says_that_a_pod_may_wait_for_ever(
        self, site, caplog
    ):
        refusal = site.cluster.refuse(403, matching=lambda call: call.resource == "nodes")
        with site.cluster.older_scheduler(), refusal:
            backend = site.open(unschedulable_timeout=0.1)
            for _ in range(2):
                job = site.start(backend, resources=ResourceRequest(devices={"gpu": 99}))
                backend.recorder.until(job, lambda one: one.message)
            until(lambda: "may wait for ever" in caplog.text)
            assert not backend.recorder.of(job)[-1].state.is_terminal
        assert caplog.text.count("may wait for ever") == 1

    def test_a_busy_cluster_is_waited_for(self, site):
        backend = site.open(unschedulable_timeout=0.1)
        wanted = ResourceRequest(cpu=3)
        first = [site.start(backend, resources=wanted) for _ in range(2)]
        for job in first:
            # those of a burst are created side by side, and a later one may come first
            backend.recorder.running(job)
        waiting = site.start(backend, resources=wanted)
        status = backend.recorder.until(waiting, lambda one: one.message)
        assert (status.state, "Insufficient cpu" in status.message) == (PENDING, True)
        backend.kill(first[0])
        backend.recorder.running(waiting)

    def test_an_image_that_cannot_be_pulled_ends_after_a_while(self, site):
        backend = site.open(image_timeout=0.3)
        words = ("ErrImagePull", "dial tcp: connection refused")
        job = site.start(backend, Act(refused=words))
        status = backend.recorder.end(job)
        assert status.reason == Reason(ReasonKind.IMAGE)
        assert "connection refused" in status.message


class TestWaiting:
    @pytest.mark.parametrize("reason", ["TriggeredScaleUp", "Nominated"])
    def test_a_pod_is_waited_for_while_a_node_is_made_for_it_but_not_for_ever(
        self, site, monkeypatch, reason
    ):
        looked = collections.defaultdict(lambda: threading.Semaphore(0))

        def look(client, pod):
            try:
                return is_scaling_up(client, pod)
            finally:
                looked[pod].release()

        monkeypatch.setattr("fiber_k8s.lifecycle.is_scaling_up", look)
        backend = site.open(unschedulable_timeout=1.0)
        set_durations(backend, scale_up_check=0.05)
        many = ResourceRequest(devices={"gpu": 99})
        job, late = (site.start(backend, resources=many) for _ in range(2))
        for one, at in ((job, time.time()), (late, 1.0e9)):
            backend.recorder.until(one, lambda status: status.message)
            # as Karpenter tells it
            told = {
                "metadata": {"name": f"{one.id}.1"},
                "involvedObject": {"kind": "Pod", "name": one.id},
                "reason": reason,
                "message": "Pod should schedule on: nodeclaim/default-x2x4z",
                "eventTime": micro_time(at),
                "type": "Normal",
            }
            site.cluster.create("events", told)
        assert backend.recorder.end(late).reason == Reason(ReasonKind.UNSCHEDULABLE)
        for _ in range(3):
            assert looked[job.id].acquire(timeout=30)
        assert not any(status.state.is_terminal for status in backend.recorder.of(job))

    def test_why_a_container_is_not_made_is_reported(self, site, tmp_path):
        path = tmp_path / "pod.yaml"
        path.write_text(
            "spec: {volumes: [{name: words, secret: {secretName: none}}], containers: "
            "[{name: fiber, volumeMounts: [{name: words, mountPath: /words}]}]}"
        )
        backend = site.open(pod_template=str(path))
        set_durations(backend, stuck=0.3)
        job = site.start(backend)
        told = backend.recorder.until(job, lambda one: "FailedMount" in one.message)
        assert told.state is PENDING
        assert 'secret "none" not found' in told.message
        site.cluster.create("secrets", {"metadata": {"name": "none"}, "data": {"word": "Zm9v"}})
        backend.recorder.running(job)


class TestGroups:
    @pytest.mark.parametrize("gang", ["volcano", "scheduler-plugins"])
    def test_a_scheduler_that_is_not_installed_is_named(self, site, gang):
        backend = site.open(gang=gang)
        with pytest.raises(SubmitError, match=f"{gang} is not installed"):
            site.start(backend, gang=Gang(name="ring-1", size=2, timeout=5.0))

    def test_jobs_that_come_one_by_one_may_be_a_gang_too(self, site, backend):
        def gang(name, size):
            return Gang(name=name, size=size, timeout=60.0)

        kueue = site.open(gang="kueue", queue="team")
        gangs = [gang("ring-1", 2), gang("ring-1", 2), gang("ring-2", 1), None]
        jobs = [site.start(kueue, gang=gang) for gang in gangs]
        # nor is there a group without a scheduler of groups
        jobs.append(site.start(backend, gang=gang("ring-1", 2)))
        wanted = {job.id for job in jobs}
        site.cluster.wait_for("pods", lambda pods: wanted <= {*names(pods)})
        pods = [site.cluster.get("pods", job.id)["metadata"] for job in jobs]
        groups = [pod["labels"].get("kueue.x-k8s.io/pod-group-name") for pod in pods]
        assert groups[0] == groups[1] != groups[2]
        assert groups[3:] == [None, None]
        counts = [pod["annotations"].get("kueue.x-k8s.io/pod-group-total-count") for pod in pods]
        assert counts == ["2", "2", "1", None, None]
        assert pods[0]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        # nobody takes a lost member's place in its group
        assert pods[0]["annotations"]["kueue.x-k8s.io/retriable-in-group"] == "false"


def names(pods):
    return [pod["metadata"]["name"] for pod in pods]
