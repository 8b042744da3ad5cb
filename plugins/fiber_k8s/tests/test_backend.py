"""Jobs as pods of a cluster whose pods are hollow: states, ends, refusals, removal."""

import base64
import contextlib

import pytest

from cluster import Act
from fiber.backend_parts.private import read_private
from fiber.exceptions import BackendUnavailableError, SubmitError, UnknownJobError
from fiber.model import (
    BackendContext,
    Gang,
    Job,
    JobState,
    Reason,
    ReasonKind,
    ResourceRequest,
    Timing,
)
from fiber_k8s.backend import K8sBackend
from fiber_k8s.config import K8sConfig
from fiber_k8s.run_objects import LEASES
from k8s_site import set_durations
from k8s_world import QUOTA_EXCEEDED, spec
from wire_world import until

PENDING, RUNNING = JobState.PENDING, JobState.RUNNING


class TestLife:
    def test_a_job_is_accepted_runs_and_ends(self, site, backend):
        job = site.start(backend, Act(code=0, after=0.2))
        assert backend.recorder.end(job).exit_code == 0
        assert [one.state for one in backend.recorder.of(job)][-2:] == [RUNNING, JobState.SUCCEEDED]
        assert backend.recorder.of(job)[0].state is PENDING

    def test_a_processs_pod_goes_when_it_has_ended(self, site, backend):
        job = site.start(backend, Act(code=0))
        backend.recorder.end(job)
        site.cluster.wait_for("pods", lambda pods: job.id not in names(pods))

    def test_a_programs_pod_stays_for_its_log_until_its_run_is_removed(self, site, backend):
        job = site.start(backend, Act(code=0, log="a line\n"), entry=None, argv=("true",))
        backend.recorder.end(job)
        assert list(backend.logs(job)) == ["a line"]
        backend.cleanup(backend.run)
        site.wait_until_gone(backend.run)

    def test_a_failure_has_its_last_lines(self, site, backend):
        job = site.start(backend, Act(code=3, log="one\ntwo\n"))
        status = backend.recorder.end(job)
        assert (status.reason, status.exit_code) == (Reason(ReasonKind.EXIT, 3), 3)
        assert status.processes[0].log_tail == ("one", "two")
        assert list(backend.logs(job)) == ["one", "two"]

    def test_failures_can_be_kept(self, site):
        backend = site.open(keep_failed=True)
        job, good = site.start(backend, Act(code=3)), site.start(backend, Act(code=0))
        backend.recorder.end(job)
        backend.recorder.end(good)
        site.cluster.wait_for(
            "pods",
            lambda pods: (
                [(one["metadata"]["name"], one["metadata"].get("ownerReferences")) for one in pods]
                == [(job.id, None)]
            ),
        )
        backend.close()
        # its run is over, and it is there
        (left,) = site.cluster.objects("pods")
        assert left["metadata"]["name"] == job.id
        gc = site.open()
        assert gc.sweep() == [backend.run]
        site.wait_until_gone(backend.run)

    def test_out_of_memory_is_reported(self, site, backend):
        assert backend.recorder.end(site.start(backend, Act(oom=True))).reason == Reason(
            ReasonKind.OOM
        )

    def test_a_pod_that_is_to_be_evicted_is_reported_while_it_works(self, site, backend):
        job = site.start(backend, Act(on_term=None))
        assert not backend.recorder.running(job).draining
        site.cluster.evict(job.id, grace=20)
        status = backend.recorder.until(job, lambda status: status.draining)
        assert (status.state, status.reason) == (RUNNING, Reason(ReasonKind.EVICTED))
        backend.kill(job)
        assert backend.recorder.end(job).reason == Reason(ReasonKind.EVICTED)

    def test_terminate_lets_it_end_in_its_own_way(self, site, backend):
        job = site.start(backend, Act(on_term=4))
        backend.recorder.running(job)
        backend.terminate(job, grace=20)
        assert backend.recorder.end(job).exit_code == 4

    def test_kill_ends_what_does_not_listen(self, site, backend):
        job = site.start(backend, Act(on_term=None))
        backend.recorder.running(job)
        backend.kill(job)
        backend.kill(job)
        assert backend.recorder.end(job).reason == Reason(ReasonKind.SIGNAL, 9)
        backend.kill(job)
        backend.terminate(job)

    def test_a_pod_that_others_delete_has_ended(self, site, backend):
        job = site.start(backend)
        backend.recorder.running(job)
        site.cluster.delete_pod(job.id, grace=0)
        status = backend.recorder.end(job)
        assert (status.reason, status.message) == (
            Reason(ReasonKind.UNKNOWN),
            "its pod was deleted by force while it ran",
        )

    @pytest.mark.parametrize("how,kind", [("evict", ReasonKind.EVICTED), ("kubelet_evict", ReasonKind.EVICTED), ("preempt", ReasonKind.PREEMPTED)])  # fmt: skip
    def test_a_preemption_is_reported(self, site, backend, how, kind):
        job = site.start(backend)
        backend.recorder.running(job)
        getattr(site.cluster, how)(job.id)
        status = backend.recorder.end(job)
        assert status.reason == Reason(kind)
        assert not status.reason.counts_as_attempt

    def test_a_log_is_followed_to_the_jobs_end(self, site, backend):
        job = site.start(backend, Act(log="first\n"))
        backend.recorder.running(job)
        lines = backend.logs(job, follow=True)
        assert next(lines) == "first"
        site.cluster.say(job.id, "second\n")
        assert next(lines) == "second"
        site.cluster.end(job.id, code=0)
        assert list(lines) == []

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
    def test_all_of_a_run_belongs_to_its_lease(self, site, backend):
        job = site.start(backend, private=b"x")
        lease = site.cluster.get("leases", f"fiber-{backend.run}")
        owner = {
            "apiVersion": LEASES,
            "kind": "Lease",
            "name": lease["metadata"]["name"],
            "uid": lease["metadata"]["uid"],
        }
        assert site.cluster.get("pods", job.id)["metadata"]["ownerReferences"] == [owner]
        secret = site.cluster.get("secrets", f"fiber-{backend.run}")
        assert secret["metadata"]["ownerReferences"] == [owner]
        assert secret["immutable"] is True

    def test_nothing_is_left_at_the_end_and_close_waits_for_the_pods(self, site, backend):
        for _ in range(3):
            backend.recorder.running(site.start(backend, private=b"x"))
        backend.close()
        assert [one for one in site.left(backend.run) if one.startswith("pods")] == []
        site.wait_until_gone(backend.run)

    def test_what_outlives_its_starter_stays(self, site):
        first = site.open()
        deaf = Act(on_term=None)
        job = site.start(first, deaf, entry=None, argv=("sleep",), detached=True)
        first.recorder.running(job)
        first.close()
        assert job.id in names(site.cluster.objects("pods"))
        second = site.open()
        # whoever removes another program's pods is told nothing of them, and does not wait for that
        set_durations(second, deletion=3600.0)
        assert [one.id for one in second.list(first.run)] == [job.id]
        second.cleanup(first.run)
        site.wait_until_gone(first.run)

    def test_a_run_that_renews_its_lease_is_left_alone(self, site):
        first, second = site.open(), site.open()
        job = site.start(first)
        site.start(second)
        assert second.sweep() == []
        assert job.id in names(site.cluster.objects("pods"))

    def test_programs_that_have_ended_are_swept_when_asked(self, site, backend):
        other = site.open()
        job = site.start(other, Act(code=0), entry=None, argv=("true",), detached=True)
        backend.recorder.running(site.start(backend))
        other.recorder.end(job)
        assert backend.sweep() == [other.run]
        site.cluster.wait_for("pods", lambda pods: job.id not in names(pods))


class TestRefusals:
    def test_no_image_is_reported_with_what_to_set(self, site, backend):
        with pytest.raises(SubmitError, match="FIBER_IMAGE"):
            site.start(backend, image=None)

    def test_a_quota_is_reported_with_the_clusters_message(self, site):
        backend = site.open()
        refusal = site.cluster.refuse_pods(QUOTA_EXCEEDED)
        with refusal, pytest.raises(SubmitError, match="exceeded quota"):
            site.start(backend)

    def test_a_missing_right_is_reported_with_what_grants_it(self, site):
        name = site.cluster.add_account("nobody")
        path = site.cluster.kubeconfig.with_name("nobody")
        site.cluster.write_kubeconfig(path, user=name)
        config = K8sConfig(kubeconfig=str(path))
        backend = K8sBackend(BackendContext(config=config, run_id="00000001"))
        with pytest.raises(SubmitError, match="cannot list resource .*fiber k8s rbac"):
            backend.submit(spec(run_id="00000001", image="app:1"))
        backend.close()

    def test_an_unknown_field_of_a_template_is_refused(self, site, tmp_path):
        path = tmp_path / "pod.yaml"
        path.write_text("spec: {tolerationz: []}")
        backend = site.open(pod_template=str(path))
        told = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.tolerationz"'

        def is_invalid(call):
            return call.resource == "pods" and call.query.get("fieldValidation") == "Strict"

        refusal = site.cluster.refuse(400, matching=is_invalid, message=told)
        with refusal, pytest.raises(SubmitError, match="unknown field .*tolerationz"):
            site.start(backend)

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

    def test_an_unknown_job_is_an_error(self, site, backend):
        job = Job(id="none-1", name="none", run_id=backend.run, backend="k8s")
        for call in (backend.kill, backend.terminate, lambda j: list(backend.logs(j)), lambda j: backend.status([j])):  # fmt: skip
            with pytest.raises(UnknownJobError, match="none-1"):
                call(job)

    def test_a_missing_cluster_is_named(self, site, tmp_path):
        path = tmp_path / "config"
        path.write_text(
            site.cluster.kubeconfig.read_text().replace(site.cluster.url, "https://127.0.0.1:9")
        )
        config, timing = K8sConfig(kubeconfig=str(path)), Timing(outage=0.0)
        backend = K8sBackend(BackendContext(config=config, run_id="00000002", timing=timing))
        with pytest.raises(BackendUnavailableError, match="127.0.0.1:9.*FIBER_K8S_CONTEXT"):
            backend.submit(spec(run_id="00000002", image="app:1"))
        backend.close()


class TestGroups:
    def test_all_run_or_none(self, site, backend):
        jobs = backend.submit_group([site.spec(backend) for _ in range(3)], 20.0)
        assert {status.state for status in backend.status(jobs)} == {RUNNING}

    def test_where_not_all_find_room_none_stays(self, site, backend):
        wanted = ResourceRequest(cpu=3)
        specs = [site.spec(backend, resources=wanted) for _ in range(4)]
        with pytest.raises(SubmitError, match="Insufficient cpu"):
            backend.submit_group(specs, 1.0)
        site.wait_until_gone(backend.run, ("pods",))

    def test_jobs_that_come_one_by_one_may_be_a_gang_too(self, site):
        backend = site.open(gang="kueue", queue="team")
        gangs = [
            Gang(name="ring-1", size=2, timeout=60.0),
            Gang(name="ring-2", size=1, timeout=60.0),
        ]
        jobs = [site.start(backend, gang=gang) for gang in (gangs[0], gangs[0], gangs[1], None)]
        wanted = {job.id for job in jobs}
        site.cluster.wait_for(
            "pods", lambda pods: wanted <= {one["metadata"]["name"] for one in pods}
        )
        pods = [site.cluster.get("pods", job.id)["metadata"] for job in jobs]
        names = [pod["labels"].get("kueue.x-k8s.io/pod-group-name") for pod in pods]
        assert names[0] == names[1] != names[2]
        assert names[3] is None
        counts = [pod["annotations"].get("kueue.x-k8s.io/pod-group-total-count") for pod in pods]
        assert counts == ["2", "2", "1", None]

    def test_without_a_gang_scheduler_there_is_no_pod_group(self, site, backend):
        job = site.start(backend, gang=Gang(name="ring-1", size=2, timeout=60.0))
        assert "kueue" not in str(site.cluster.get("pods", job.id)["metadata"])


def names(pods):
    return [pod["metadata"]["name"] for pod in pods]
