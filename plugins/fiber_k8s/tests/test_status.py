"""Statuses of pods, as recorded from a real cluster."""

import copy

import pytest

from fiber.model import JobState, Reason, ReasonKind
from fiber_k8s.status import PendingCause, deleted_status, job_of, pending_cause, status_of
from k8s_world import pods_of

PENDING, RUNNING, FAILED = JobState.PENDING, JobState.RUNNING, JobState.FAILED


def states(name, pod=None):
    """The states that a recorded pod went through, without repetitions."""
    found = []
    for _, one in pods_of(name, pod):
        state = status_of(one).state
        if not found or found[-1] is not state:
            found.append(state)
    return found


def last(name, pod):
    """How a recorded pod was seen to end, the first time."""
    for kind, one in pods_of(name, pod):
        status = status_of(one) if kind != "DELETED" else deleted_status(one)
        if status.state.is_terminal:
            return status
    return status_of(pods_of(name, pod)[-1][1])


class TestRecordedLives:
    def test_a_program_that_ends_well(self):
        assert states("pod-life/01-success-exit-0") == [PENDING, RUNNING, JobState.SUCCEEDED]
        assert last("pod-life/01-success-exit-0", "demo").exit_code == 0
        # a child of its that was killed for memory is no end of it
        assert last("pod-life/04b-oom-killed-child", "survivor").state is JobState.SUCCEEDED

    @pytest.mark.parametrize(
        "name, pod, reason, code, words",
        [
            ("03a-delete-sigterm-handled", "demo", Reason(ReasonKind.EXIT, 3), 3, ""),
            ("03b-delete-pid1-ignores-sigterm", "demo", Reason(ReasonKind.SIGNAL, 9), -9, ""),
            ("04a-oom-killed", "demo", Reason(ReasonKind.OOM), -9, ""),
            ("04b-oom-killed-child", "reporter", Reason(ReasonKind.OOM), 9, ""),
            (
                *("05a-start-error", "not-found", Reason(ReasonKind.START), 127),
                'exec: "no-such-command": executable file not found',
            ),
            ("05a-start-error", "not-executable", Reason(ReasonKind.START), 127, ""),
            ("06-images", "never", Reason(ReasonKind.IMAGE), 127, "no-such-image:1"),
            ("06-images", "no-name", Reason(ReasonKind.IMAGE), 127, ""),
            (
                *("08-active-deadline", "ignores", Reason(ReasonKind.SIGNAL, 9), -9),
                "longer than the specified deadline",
            ),
            ("09-eviction-api", "a", Reason(ReasonKind.EVICTED), 0, ""),
            ("09-eviction-api", "b", Reason(ReasonKind.EVICTED), -9, ""),
            ("10-noexecute-taint", "plain", Reason(ReasonKind.EVICTED), 0, ""),
            ("13-preemption", "low-2", Reason(ReasonKind.PREEMPTED), 0, ""),
            (
                *("17-kubelet-eviction", "storage", Reason(ReasonKind.EVICTED), -9),
                "ephemeral local storage",
            ),
            ("19-nodename-set", "too-big", Reason(ReasonKind.UNSCHEDULABLE), -9, ""),
            ("19-nodename-set", "ghost", Reason(ReasonKind.NODE_LOST), -9, ""),
            ("12-delete-while-pending", "unscheduled", Reason(ReasonKind.UNKNOWN), -9, ""),
        ],
    )
    def test_an_end_has_its_reason_and_the_clusters_words(self, name, pod, reason, code, words):
        status = last(f"pod-life/{name}", pod)
        assert (status.state, status.reason, status.exit_code) == (FAILED, reason, code)
        assert status.message
        assert words in status.message

    def test_an_end_is_known_before_the_whole_pod_has_ended(self):
        ends = [one for _, one in pods_of("pod-life/04a-oom-killed") if status_of(one).state is FAILED]  # fmt: skip
        assert ends[0]["status"]["phase"] == "Running"

    @pytest.mark.parametrize("name", ["03a-delete-sigterm-handled", "20-node-lost"])
    def test_states_never_go_back_and_a_lost_node_is_no_end(self, name):
        order = {PENDING: 0, RUNNING: 1}
        for pod in {one["metadata"]["name"] for _, one in pods_of(f"pod-life/{name}")}:
            ranks = [order.get(state, 2) for state in states(f"pod-life/{name}", pod)]
            assert ranks == sorted(ranks), pod
        assert states("pod-life/20-node-lost", "plain")[-1] in {PENDING, RUNNING}


class TestWaiting:
    @pytest.mark.parametrize("pod", ["gpu", "cpu-and-gpu"])
    def test_a_pod_that_no_node_can_take_has_a_cause_and_the_schedulers_message(self, pod):
        told = [one for _, one in pods_of("pod-life/07-unschedulable", pod)]
        refused = next(one for one in told if status_of(one).reason is not None)
        status = status_of(refused)
        assert (status.state, status.reason) == (PENDING, Reason(ReasonKind.UNSCHEDULABLE))
        assert "0/1 nodes are available: 1 Insufficient" in status.message
        assert pending_cause(refused) is PendingCause.NODE

    def test_what_waits_its_turn_or_for_a_node_to_come_back_is_not_hopeless(self):
        told = [one for _, one in pods_of("pod-life/13-preemption", "third")]
        waits = [one for one in told if status_of(one).reason is not None]
        assert {pending_cause(one) for one in waits} == {PendingCause.CAPACITY}
        told = [one for _, one in pods_of("pod-life/10-noexecute-taint", "late")]
        assert {pending_cause(one) for one in told} == {None}

    def test_a_registry_that_does_not_answer_may_answer_yet(self):
        told = [one for _, one in pods_of("pod-life/06-images", "refused")]
        said = [one for one in told if status_of(one).reason is not None]
        assert {status_of(one).state for one in said} == {PENDING}
        assert {pending_cause(one) for one in said} == {PendingCause.CONTAINER}
        assert "connection refused" in status_of(said[0]).message

    @pytest.mark.parametrize(
        "words",
        [
            "manifest for app:3 not found: manifest unknown",
            "pull access denied, repository does not exist or may require authorization",
            "failed to authorize: 401 Unauthorized",
        ],
    )
    def test_a_refusing_registry_is_a_final_error_and_where_nodes_may_have_it_with_the_setting(
        self, words
    ):
        pod = waiting("ErrImagePull", words)
        status = status_of(pod)
        assert (status.state, status.reason) == (FAILED, Reason(ReasonKind.IMAGE))
        assert status.message == f"ErrImagePull: {words}"
        pod["spec"]["containers"] = [{"name": "fiber", "imagePullPolicy": "Always"}]
        assert status_of(pod).message.endswith("with FIBER_K8S_PULL=IfNotPresent")

    def test_an_init_containers_image_is_reported_as_well(self):
        """The container itself only waits for the init container."""
        pod = waiting("PodInitializing", "")
        pod["status"]["initContainerStatuses"] = [
            {"name": "proxy-init", "state": {"terminated": {"exitCode": 0}}},
            {
                "name": "clone",
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}},
            },
        ]
        status = status_of(pod)
        assert (status.state, status.reason) == (PENDING, Reason(ReasonKind.IMAGE))
        assert status.message == "ImagePullBackOff: init container clone: no such host"
        assert pending_cause(pod) is PendingCause.CONTAINER

    def test_a_container_that_cannot_be_made_may_be_yet(self):
        pod = waiting("CreateContainerConfigError", 'secret "token" not found')
        assert status_of(pod).state is PENDING
        assert pending_cause(pod) is PendingCause.CONTAINER

    def test_a_container_that_may_not_run_as_root_never_is_and_what_mends_it_is_reported(self):
        status = last("pod-life/05b-create-container-config-error", "root")
        assert status.reason == Reason(ReasonKind.START)
        assert "runAsNonRoot" in status.message
        assert "USER 1000" in status.message


def pod_with(state, phase="Running", name="fiber", **more):
    return {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "containerStatuses": [{"name": name, "state": state}], **more},
    }


def waiting(reason, message):
    return pod_with({"waiting": {"reason": reason, "message": message}}, "Pending")


def ended(code, message="", **more):
    return pod_with({"terminated": {"exitCode": code, "message": message, **more}})


class TestExitCodes:
    @pytest.mark.parametrize(
        "code,message,expected",
        [
            (137, "fiber: exit 137\n", 137),
            (137, "fiber: signal 9\n", -9),
            (137, "", -9),
            (143, "", -15),
            (143, "what I did\nfiber: exit 143\n", 143),
            (7, "", 7),
            (255, "", 255),
            (139, "fiber: bare\n", -11),
        ],
    )
    def test_the_termination_message_distinguishes_codes_from_signals(
        self, code, message, expected
    ):
        assert status_of(ended(code, message)).exit_code == expected

    def test_a_failed_start_has_its_reason_and_a_failure_the_last_lines(self):
        status = status_of(ended(126, "\nfiber: start cannot run 'x': Permission denied\n"))
        assert (status.reason, status.exit_code) == (Reason(ReasonKind.START), 126)
        assert status.message == "cannot run 'x': Permission denied"
        assert status_of(ended(3, "out of ideas\nfiber: exit 3\n")).message == "out of ideas"

    def test_a_sidecars_end_is_not_the_jobs(self):
        pod = pod_with({"running": {}})
        pod["status"]["containerStatuses"].insert(0, {"name": "a", "state": {"terminated": {"exitCode": 1}}})  # fmt: skip
        assert status_of(pod).state is RUNNING


def test_a_job_is_read_from_labels_and_annotations():
    pod = copy.deepcopy(ended(0))
    pod["metadata"] |= {
        "labels": {"fiber/run": "0a1b2c3d"},
        "annotations": {"fiber/name": "My Job", "fiber/argv": '["a", "b c"]'},
        "namespace": "research",
        "creationTimestamp": "2026-11-20T17:16:13Z",
    }
    job = job_of("k8s", pod)
    assert (job.id, job.name, job.run_id, job.argv) == ("p", "My Job", "0a1b2c3d", ("a", "b c"))
    assert job.data == {"namespace": "research", "uid": "u"}
    assert job.submitted == 1795194973.0


def test_a_claim_that_does_not_exist_keeps_a_pod_pending_in_vain():
    words = '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
    condition = {"type": "PodScheduled", "status": "False", "message": words}
    pod = {"metadata": {}, "status": {"phase": "Pending", "conditions": [condition]}}
    assert pending_cause(pod) is PendingCause.NODE
    assert status_of(pod).message == words
