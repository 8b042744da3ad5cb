"""Events of pods that wait: an autoscaler that adds a node, a missing volume."""

import threading
import time

import pytest

from fiber.model import JobState, Reason, ReasonKind, ResourceRequest
from fiber_k8s.run_objects import micro_time
from k8s_site import set_durations

MANY = ResourceRequest(devices={"gpu": 99})


class TestAutoscaler:
    @pytest.fixture
    def looked(self, monkeypatch):
        """Released after each look at the events of a pod."""
        import fiber_k8s.lifecycle

        asked, original = threading.Semaphore(0), fiber_k8s.lifecycle.is_scaling_up

        def is_scaling_up(client, pod):
            try:
                return original(client, pod)
            finally:
                asked.release()

        monkeypatch.setattr("fiber_k8s.lifecycle.is_scaling_up", is_scaling_up)
        return asked

    @pytest.fixture
    def backend(self, site, looked):
        backend = site.open(unschedulable_timeout=1.0)
        set_durations(backend, scale_up_check=0.05)
        return backend

    @staticmethod
    def say(site, job, reason, at):
        told = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{job.id}.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": job.id},
            "reason": reason,
            "message": "Pod should schedule on: nodeclaim/default-x2x4z",
            "eventTime": micro_time(at),
            "reportingComponent": "karpenter",
            "reportingInstance": "karpenter-1",
            "action": "Scheduling",
            "type": "Normal",
        }
        site.cluster.create("events", told)

    @pytest.mark.parametrize("reason", ["TriggeredScaleUp", "Nominated"])
    def test_a_pod_is_waited_for_while_a_node_is_made_for_it(self, site, backend, looked, reason):
        job = site.start(backend, resources=MANY)
        backend.recorder.until(job, lambda one: one.message)
        self.say(site, job, reason, time.time())
        for _ in range(3):
            assert looked.acquire(timeout=30)
        assert not any(one.state.is_terminal for one in backend.recorder.of(job))

    def test_but_not_for_ever(self, site, backend):
        job = site.start(backend, resources=MANY)
        backend.recorder.until(job, lambda one: one.message)
        self.say(site, job, "Nominated", 1.0e9)
        assert backend.recorder.end(job).reason == Reason(ReasonKind.UNSCHEDULABLE)


class TestSlow:
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
        assert told.state is JobState.PENDING
        assert 'secret "none" not found' in told.message
        site.cluster.create(
            "secrets", {"metadata": {"name": "none"}, "data": {"word": "Zm9v"}, "type": "Opaque"}
        )
        backend.recorder.running(job)
