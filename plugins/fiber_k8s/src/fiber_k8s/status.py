"""Maps a Pod object of the API to a JobStatus; pure.

Phases, conditions, container states and their reasons are those of "Pod Lifecycle" in Kubernetes'
documentation; words of kubelets and schedulers were taken from recordings of real clusters.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Mapping
from typing import Any

import attrs

from fiber._agent.supervisor.jobs import signal_name
from fiber.backend_parts.containers import arguments, timestamp
from fiber.backend_parts.feed import ended, exit_code, failed
from fiber.backend_parts.first import last_word
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind
from fiber_k8s.names import CONTAINER, PREFIX

_START_FAILED = 127
_KILLED = -int(signal.SIGKILL)
#: kind of disruption, by the reason of the condition DisruptionTarget
_DISRUPTIONS = {
    "PreemptionByScheduler": ReasonKind.PREEMPTED,
    "PreemptionByKubeScheduler": ReasonKind.PREEMPTED,
    "DeletionByTaintManager": ReasonKind.EVICTED,
    "EvictionByEvictionAPI": ReasonKind.EVICTED,
    "TerminationByKubelet": ReasonKind.EVICTED,
    "DeletionByPodGC": ReasonKind.NODE_LOST,
}
#: kind of failure, by ``status.reason`` of a failed pod
_POD_REASONS = {
    "Evicted": ReasonKind.EVICTED,
    "Preempting": ReasonKind.PREEMPTED,
    "Preempted": ReasonKind.PREEMPTED,
    "NodeLost": ReasonKind.NODE_LOST,
    "NodeShutdown": ReasonKind.EVICTED,
    "Shutdown": ReasonKind.EVICTED,
    "Terminated": ReasonKind.EVICTED,
    "UnexpectedAdmissionError": ReasonKind.UNSCHEDULABLE,
    "NodeAffinity": ReasonKind.UNSCHEDULABLE,
    "NodePorts": ReasonKind.UNSCHEDULABLE,
}
#: reasons of waiting containers that never pass
_FATAL_WAITS = {
    "InvalidImageName": ReasonKind.IMAGE,
    "ErrImageNeverPull": ReasonKind.IMAGE,
    "ImageInspectError": ReasonKind.IMAGE,
}
#: reasons of waiting containers that may pass
_RETRIED_WAITS = {
    "ErrImagePull": ReasonKind.IMAGE,
    "ImagePullBackOff": ReasonKind.IMAGE,
    "RegistryUnavailable": ReasonKind.IMAGE,
    "SignatureValidationFailed": ReasonKind.IMAGE,
    "CreateContainerConfigError": ReasonKind.START,
    "CreateContainerError": ReasonKind.START,
    "RunContainerError": ReasonKind.START,
    # of a sidecar that has to run before the container
    "CrashLoopBackOff": ReasonKind.START,
}
#: a registry's message where the image does not exist or may not be pulled: retries are in vain
_FATAL_PULL = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|unauthorized|denied|"
    r"authentication required|insufficient_scope|no match for platform|invalid reference",
    re.IGNORECASE,
)
#: a kubelet's refusals of a container that may not run as root; neither its pod nor its image changes
_ROOT_USER = re.compile(r"runAsNonRoot|verify user is non-root|breaks non-root policy")
_ROOT_ADVICE = (
    "; give the image a user that is not root, by its number (USER 1000), or set runAsUser in "
    "FIBER_K8S_POD_TEMPLATE"
)
#: schedulers before 1.34 use this also for a resource that a node has never had
_INSUFFICIENT = re.compile(r"\d Insufficient \S")
#: a volume that nobody has made: it is waited for as long as for a node that does not exist
_NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
#: reasons for which a node refuses a pod that pass by themselves
_NODES_PASSING = re.compile(r"untolerated taint|were unschedulable|not ready|free ports")


class PendingCause(enum.Enum):
    """The requirement of a pending pod that may never be met."""

    #: no node could take it, even if all were empty, or there is no claim of that name
    NODE = "node"
    #: a resource is insufficient; whether an empty node would do, the scheduler does not say
    CAPACITY = "capacity"
    #: the image cannot be pulled, or the container not be created
    CONTAINER = "container"


def status_of(pod: Mapping[str, Any]) -> JobStatus:
    """Return the status of a pod as the API returned it."""
    pod_status = pod.get("status") or {}
    host = (pod.get("spec") or {}).get("nodeName")
    container = _container(pod_status)
    state = container.get("state") or {}
    ended = state.get("terminated")
    phase = pod_status.get("phase")
    disruption = _disruption(pod_status)
    if ended is not None and not _is_unseen(ended):
        # the container's end comes a second before the pod's
        return _ended(ended, pod_status, disruption, host)
    if phase == "Failed" or (phase == "Succeeded" and ended is None):
        return _pod_failed(pod_status, disruption, host)
    if "running" in state:
        message = disruption[1] if disruption else ""
        reason = Reason(disruption[0]) if disruption else None
        return JobStatus(
            state=JobState.RUNNING,
            reason=reason,
            message=message,
            host=host,
            draining=is_terminating(pod),
        )
    if phase == "Unknown":
        return JobStatus(
            state=JobState.UNKNOWN, message=str(pod_status.get("message") or ""), host=host
        )
    status = _pending(pod_status, _waiting(pod_status), host)
    if status.reason == Reason(ReasonKind.IMAGE) and _always_pulls(pod):
        # as it is for `latest` by default, also where the image was loaded into the node
        msg = f"{status.message}; nodes that have it use it with FIBER_K8S_PULL=IfNotPresent"
        return attrs.evolve(status, message=msg)
    return status


def pending_cause(pod: Mapping[str, Any]) -> PendingCause | None:
    """Return what keeps a pod pending in vain; None where it only waits its turn, or runs."""
    pod_status = pod.get("status") or {}
    if pod_status.get("phase") not in (None, "Pending"):
        return None
    if _waiting(pod_status).get("reason") in _RETRIED_WAITS:
        return PendingCause.CONTAINER
    for condition in pod_status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = str(condition.get("message") or "")
            if _is_hopeless(message) or _NO_CLAIM.search(message):
                return PendingCause.NODE
            return PendingCause.CAPACITY if _INSUFFICIENT.search(message) else None
    return None


def is_creating_container(pod: Mapping[str, Any]) -> bool:
    """True for a scheduled pod whose container is being created and reports no error."""
    pod_status = pod.get("status") or {}
    if not (pod.get("spec") or {}).get("nodeName") or pod_status.get("phase") != "Pending":
        return False
    return _waiting(pod_status).get("reason") in {None, "ContainerCreating", "PodInitializing"}


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """True for a pod with a deletion timestamp."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def grace_left(pod: Mapping[str, Any], now: float) -> float:
    """Return the seconds left of a terminating pod's grace period.

    Args:
        pod: as the API returned it.
        now: seconds since the epoch, by the cluster's clock.
    """
    # the deletion timestamp is the end of the grace period
    end = timestamp((pod.get("metadata") or {}).get("deletionTimestamp"))
    return 0.0 if end is None else max(0.0, end - now)


def lost_status(pod: Mapping[str, Any]) -> JobStatus:
    """Return the final status of a terminating pod whose node does not confirm its end."""
    host = (pod.get("spec") or {}).get("nodeName")
    words = f"it was to end, and {host or 'its node'} does not confirm it: the node, or the way there, is lost"  # fmt: skip
    return failed(ReasonKind.NODE_LOST, words, _KILLED, host)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """True for a pod in a terminal phase."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def has_running_container(pod: Mapping[str, Any]) -> bool:
    """True for a pod with a container that runs, or may run for all that its node has reported."""
    pod_status = pod.get("status") or {}
    if has_ended(pod):
        return False
    statuses = [
        one
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        for one in pod_status.get(kind) or ()
    ]
    if not statuses:
        return pod_status.get("phase") in {"Running", "Unknown"}
    return any("running" in (one.get("state") or {}) for one in statuses)


def deleted_status(pod: Mapping[str, Any]) -> JobStatus:
    """Return the final status of a pod whose object was deleted, from its last version."""
    status = status_of(pod)
    if status.state.is_terminal:
        return status
    pod_status = pod.get("status") or {}
    disruption = _disruption(pod_status)
    if disruption:
        kind, words = disruption
    elif "running" in (_container(pod_status).get("state") or {}):
        kind, words = ReasonKind.UNKNOWN, "its pod was deleted by force while it ran"
    else:
        kind, words = ReasonKind.UNKNOWN, "its pod was deleted before it ran"
    return failed(kind, words, _KILLED, status.host)


def as_killed(status: JobStatus) -> JobStatus:
    """Return the final status of a job after :meth:`kill`: SIGTERM is reported as SIGKILL.

    A node sends SIGTERM first, however short the grace period is, and most programs end by that.
    """
    if status.reason != Reason(ReasonKind.SIGNAL, int(signal.SIGTERM)):
        return status
    return attrs.evolve(
        status,
        reason=Reason(ReasonKind.SIGNAL, int(signal.SIGKILL)),
        exit_code=_KILLED,
        message="killed",
    )


def job_of(backend: str, pod: Mapping[str, Any]) -> Job:
    """Return the job of a pod, from its name, labels and annotations."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    return Job(
        id=metadata["name"],
        name=annotations.get(f"{PREFIX}name", metadata["name"]),
        run_id=labels.get(f"{PREFIX}run", ""),
        backend=backend,
        data={"namespace": metadata.get("namespace", ""), "uid": metadata.get("uid", "")},
        argv=arguments(annotations.get(f"{PREFIX}argv", "[]")),
        submitted=timestamp(metadata.get("creationTimestamp")),
    )


# -- within


def _container(pod_status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container status of the job's container; else of the first one."""
    statuses = pod_status.get("containerStatuses") or ()
    named = (one for one in statuses if one.get("name") == CONTAINER)
    found = next(named, statuses[0] if statuses else None)
    return found or {}


def _waiting(pod_status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the waiting state of the job's container, or of a failing init container before it."""
    own: Mapping[str, Any] = (_container(pod_status).get("state") or {}).get("waiting") or {}
    if own.get("reason") not in (None, "PodInitializing"):
        return own
    for one in pod_status.get("initContainerStatuses") or ():
        theirs = (one.get("state") or {}).get("waiting") or {}
        if theirs.get("reason") in _FATAL_WAITS or theirs.get("reason") in _RETRIED_WAITS:
            return {**theirs, "message": f"init container {one['name']}: {theirs.get('message')}"}
    return own


def _always_pulls(pod: Mapping[str, Any]) -> bool:
    containers = (pod.get("spec") or {}).get("containers") or ()
    policies = {one.get("name"): one.get("imagePullPolicy") for one in containers}
    return policies.get(CONTAINER) == "Always"


def _is_unseen(ended: Mapping[str, Any]) -> bool:
    """True where a kubelet reports the end of a container whose state it does not know."""
    return ended.get("reason") == "ContainerStatusUnknown"


def _disruption(pod_status: Mapping[str, Any]) -> tuple[ReasonKind, str] | None:
    for condition in pod_status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            why = str(condition.get("reason") or "")
            kind = _DISRUPTIONS.get(why, ReasonKind.EVICTED)
            return kind, str(condition.get("message") or why)
    return None


def _ended(
    end: Mapping[str, Any],
    pod_status: Mapping[str, Any],
    disruption: tuple[ReasonKind, str] | None,
    host: str | None,
) -> JobStatus:
    code, why = int(end.get("exitCode", 0)), str(end.get("reason") or "")
    last, words = last_word(str(end.get("message") or ""))
    if why in {"StartError", "ContainerCannotRun"}:
        return failed(ReasonKind.START, words or why, _START_FAILED, host)
    kind, _, rest = last.partition(" ")
    if kind == "start":
        return failed(ReasonKind.START, rest, code, host)
    if kind == "signal":
        code = -int(rest)
    elif kind == "exit":
        code = int(rest)
    else:
        # no termination message: shells report signals so
        code = exit_code(code)
    if why == "OOMKilled" and code != 0:
        return failed(ReasonKind.OOM, "it used more memory than it may, and was killed", code, host)
    if disruption is not None:
        return failed(*disruption, code, host)
    pod_reason = str(pod_status.get("reason") or "")
    pod_words = str(pod_status.get("message") or "").strip()
    if pod_reason in _POD_REASONS:
        return failed(_POD_REASONS[pod_reason], pod_words or pod_reason, code, host)
    if code == 0:
        return ended(0, host=host)
    message = f"killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    if pod_reason == "DeadlineExceeded":
        message = pod_words or pod_reason
    elif words and why != "Completed":
        message = words
    return ended(code, message, host)


def _pod_failed(
    pod_status: Mapping[str, Any], disruption: tuple[ReasonKind, str] | None, host: str | None
) -> JobStatus:
    """Return the final status of a pod that failed without a terminated container."""
    if disruption is not None:
        return failed(*disruption, _KILLED, host)
    why, words = str(pod_status.get("reason") or ""), str(pod_status.get("message") or "").strip()
    kind = _POD_REASONS.get(why, ReasonKind.UNKNOWN)
    if why.startswith("OutOf"):
        kind = ReasonKind.UNSCHEDULABLE
    for one in pod_status.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            kind = ReasonKind.START
            words = (
                words or f"init container {one['name']} ended with exit code {ended['exitCode']}"
            )
    return failed(kind, words or why or "its pod failed", _KILLED, host)


def _pending(
    pod_status: Mapping[str, Any], waiting: Mapping[str, Any], host: str | None
) -> JobStatus:
    why, words = str(waiting.get("reason") or ""), str(waiting.get("message") or "").strip()
    message = f"{why}: {words}" if words and why else words or why
    if why in _FATAL_WAITS:
        return failed(_FATAL_WAITS[why], message, _START_FAILED, host)
    if why == "CreateContainerConfigError" and _ROOT_USER.search(words):
        return failed(ReasonKind.START, message + _ROOT_ADVICE, _START_FAILED, host)
    if why in _RETRIED_WAITS:
        if _RETRIED_WAITS[why] is ReasonKind.IMAGE and _FATAL_PULL.search(words):
            return failed(ReasonKind.IMAGE, message, _START_FAILED, host)
        return JobStatus(
            state=JobState.PENDING,
            reason=Reason(_RETRIED_WAITS[why]),
            message=message,
            host=host,
            is_starting=host is not None,
        )
    for condition in pod_status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return JobStatus(
                state=JobState.PENDING,
                reason=Reason(ReasonKind.UNSCHEDULABLE),
                message=str(condition.get("message") or condition.get("reason") or ""),
            )
    return JobStatus(state=JobState.PENDING, host=host, is_starting=host is not None)


def _is_hopeless(message: str) -> bool:
    """True where no existing node could take the pod, even if all other pods were gone.

    The scheduler's message says, node by node, whether preemption would help.
    """
    found = re.search(r"preemption: 0/(\d+) nodes are available: (\d+) Preemption is not helpful", message)  # fmt: skip
    if found is None or found[1] != found[2]:
        return False
    nodes = message.partition("preemption:")[0].partition("nodes are available: ")[2]
    reasons = [one for one in re.split(r", (?=\d)", nodes.split(". ", 1)[0]) if one]
    return any(not _NODES_PASSING.search(one) for one in reasons)
