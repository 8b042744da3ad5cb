"""What the cluster says of a pod, as a status; pure."""

from __future__ import annotations

import enum
import json
import re
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from fiber.backend_parts.first import last_word
from fiber.model import Job, JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from fiber_k8s.manifest import CONTAINER
from fiber_k8s.names import PREFIX

__all__ = [
    "Doubt",
    "as_killed",
    "doubt_of",
    "gone",
    "grace_left",
    "has_ended",
    "has_running_container",
    "is_leaving",
    "is_slow",
    "job_of",
    "lost",
    "parse_time",
    "status_of",
    "with_words",
]

_STARTED_NOT = 127
_KILLED = -int(signal.SIGKILL)
_SIGNALS = frozenset(int(number) for number in signal.valid_signals())
#: what took a pod's place, by the reason of its condition DisruptionTarget
_DISRUPTIONS = {
    "PreemptionByScheduler": ReasonKind.PREEMPTED,
    "PreemptionByKubeScheduler": ReasonKind.PREEMPTED,
    "DeletionByTaintManager": ReasonKind.EVICTED,
    "EvictionByEvictionAPI": ReasonKind.EVICTED,
    "TerminationByKubelet": ReasonKind.EVICTED,
    "DeletionByPodGC": ReasonKind.NODE_LOST,
}
#: what is said of a whole pod that has failed
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
#: why a container waits, where no more waiting helps
_NEVER = {
    "InvalidImageName": ReasonKind.IMAGE,
    "ErrImageNeverPull": ReasonKind.IMAGE,
    "ImageInspectError": ReasonKind.IMAGE,
}
#: the same where it may
_PERHAPS = {
    "ErrImagePull": ReasonKind.IMAGE,
    "ImagePullBackOff": ReasonKind.IMAGE,
    "RegistryUnavailable": ReasonKind.IMAGE,
    "SignatureValidationFailed": ReasonKind.IMAGE,
    "CreateContainerConfigError": ReasonKind.START,
    "CreateContainerError": ReasonKind.START,
    "RunContainerError": ReasonKind.START,
    # of a sidecar that has to be up before
    "CrashLoopBackOff": ReasonKind.START,
}
#: a registry's words for an image that is not there, or not for us
_FINAL = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|unauthorized|denied|"
    r"authentication required|insufficient_scope|no match for platform|invalid reference",
    re.IGNORECASE,
)
#: schedulers before 1.34 say this also of what a node has never had
_INSUFFICIENT = re.compile(r"\d Insufficient \S")
#: reasons of nodes that will say something else by themselves
_NODES_PASSING = re.compile(r"untolerated taint|were unschedulable|not ready|free ports")


class Doubt(enum.Enum):
    """What a pod that waits may never get."""

    #: a node that can take it
    NODE = "node"
    #: such a node, or only its turn: the scheduler does not say
    ROOM = "room"
    #: its image, or a container made of it
    CONTAINER = "container"


def status_of(pod: Mapping[str, Any]) -> JobStatus:
    """The status of a pod, as the API has it."""
    told = pod.get("status") or {}
    host = (pod.get("spec") or {}).get("nodeName")
    container = _container(told)
    state = container.get("state") or {}
    ended = state.get("terminated")
    phase = told.get("phase")
    disruption = _disruption(told)
    if ended is not None and not _is_unseen(ended):
        # the container's end comes a second before the pod's
        return _ended(ended, told, disruption, host)
    if phase == "Failed" or (phase == "Succeeded" and ended is None):
        return _pod_failed(told, disruption, host)
    if "running" in state:
        message = disruption[1] if disruption else ""
        reason = Reason(disruption[0]) if disruption else None
        return JobStatus(
            state=JobState.RUNNING,
            reason=reason,
            message=message,
            host=host,
            draining=is_leaving(pod),
        )
    if phase == "Unknown":
        return JobStatus(state=JobState.UNKNOWN, message=str(told.get("message") or ""), host=host)
    status = _pending(told, _waiting(told), host)
    if status.reason == Reason(ReasonKind.IMAGE) and _always_pulls(pod):
        # as it is for `latest` by default, also where the image was loaded into the node
        msg = f"{status.message}; nodes that have it use it with FIBER_K8S_PULL=IfNotPresent"
        return attrs.evolve(status, message=msg)
    return status


def doubt_of(pod: Mapping[str, Any]) -> Doubt | None:
    """What a pod may wait for in vain; None for one that only waits its turn, or waits no more."""
    told = pod.get("status") or {}
    if told.get("phase") not in (None, "Pending"):
        return None
    if _waiting(told).get("reason") in _PERHAPS:
        return Doubt.CONTAINER
    for condition in told.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            said = str(condition.get("message") or "")
            if _is_hopeless(said):
                return Doubt.NODE
            return Doubt.ROOM if _INSUFFICIENT.search(said) else None
    return None


def is_slow(pod: Mapping[str, Any]) -> bool:
    """True for a pod that has a node, and whose container waits for no reason that is told."""
    told = pod.get("status") or {}
    if not (pod.get("spec") or {}).get("nodeName") or told.get("phase") != "Pending":
        return False
    return _waiting(told).get("reason") in {None, "ContainerCreating", "PodInitializing"}


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """True for a pod that was told to end."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def grace_left(pod: Mapping[str, Any], now: float) -> float:
    """Seconds that the processes of a pod which was told to end have left.

    Args:
        pod: as the API has it.
        now: seconds since the epoch, by the cluster's clock.
    """
    # the API writes down when the grace is over
    end = parse_time((pod.get("metadata") or {}).get("deletionTimestamp"))
    return 0.0 if end is None else max(0.0, end - now)


def lost(pod: Mapping[str, Any]) -> JobStatus:
    """The end of a pod that was to end, and whose node does not confirm that it did."""
    host = (pod.get("spec") or {}).get("nodeName")
    words = f"it was to end, and {host or 'its node'} does not confirm it: the node, or the way there, is lost"  # fmt: skip
    return _failed(ReasonKind.NODE_LOST, words, _KILLED, host)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """True for a pod none of whose containers will run any more."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def has_running_container(pod: Mapping[str, Any]) -> bool:
    """True for a pod with a process that lives, or may for all that its node has said."""
    told = pod.get("status") or {}
    if has_ended(pod):
        return False
    statuses = [
        one
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        for one in told.get(kind) or ()
    ]
    if not statuses:
        return told.get("phase") in {"Running", "Unknown"}
    return any("running" in (one.get("state") or {}) for one in statuses)


def gone(pod: Mapping[str, Any]) -> JobStatus:
    """The end of a pod whose object was deleted, as it was at last."""
    status = status_of(pod)
    if status.state.is_terminal:
        return status
    told = pod.get("status") or {}
    disruption = _disruption(told)
    if disruption:
        kind, words = disruption
    elif "running" in (_container(told).get("state") or {}):
        kind, words = ReasonKind.UNKNOWN, "its pod was deleted by force while it ran"
    else:
        kind, words = ReasonKind.UNKNOWN, "its pod was deleted before it ran"
    return _failed(kind, words, _KILLED, status.host)


def with_words(status: JobStatus, lines: tuple[str, ...]) -> JobStatus:
    """A terminal status with the last lines that the job wrote."""
    if not lines:
        return status
    process = ProcessStatus(
        index=0,
        state=status.state,
        reason=status.reason,
        exit_code=status.exit_code,
        message=status.message,
        log_tail=lines,
    )
    return attrs.evolve(status, processes=(process,))


def as_killed(status: JobStatus) -> JobStatus:
    """The end of a job that was killed.

    A node sends SIGTERM first, however short the grace is, and most programs end by that.
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
    """The job that a pod is."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    try:
        argv = tuple(map(str, json.loads(annotations.get(f"{PREFIX}argv", "[]"))))
    except (ValueError, TypeError):
        argv = ()
    return Job(
        id=metadata["name"],
        name=annotations.get(f"{PREFIX}name", metadata["name"]),
        run_id=labels.get(f"{PREFIX}run", ""),
        backend=backend,
        data={"namespace": metadata.get("namespace", ""), "uid": metadata.get("uid", "")},
        argv=argv,
        submitted=parse_time(metadata.get("creationTimestamp")),
    )


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch of a time as the API writes it."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+-\d+-\d+T\d+:\d+:\d+)(\.\d+)?Z", text)
    if match is None:
        return None
    return datetime.fromisoformat(match[1] + "+00:00").timestamp() + float(match[2] or 0)


# -- within


def _container(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of the container that runs the job."""
    statuses = told.get("containerStatuses") or ()
    named = (one for one in statuses if one.get("name") == CONTAINER)
    found = next(named, statuses[0] if statuses else None)
    return found or {}


def _waiting(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the job's container waits with, or one that has to be through before it."""
    own: Mapping[str, Any] = (_container(told).get("state") or {}).get("waiting") or {}
    if own.get("reason") not in (None, "PodInitializing"):
        return own
    for one in told.get("initContainerStatuses") or ():
        theirs = (one.get("state") or {}).get("waiting") or {}
        if theirs.get("reason") in _NEVER or theirs.get("reason") in _PERHAPS:
            return {**theirs, "message": f"init container {one['name']}: {theirs.get('message')}"}
    return own


def _always_pulls(pod: Mapping[str, Any]) -> bool:
    containers = (pod.get("spec") or {}).get("containers") or ()
    policies = {one.get("name"): one.get("imagePullPolicy") for one in containers}
    return policies.get(CONTAINER) == "Always"


def _is_unseen(ended: Mapping[str, Any]) -> bool:
    """True where the node made an end up, of a container that it never started."""
    return ended.get("reason") == "ContainerStatusUnknown"


def _disruption(told: Mapping[str, Any]) -> tuple[ReasonKind, str] | None:
    for condition in told.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            why = str(condition.get("reason") or "")
            kind = _DISRUPTIONS.get(why, ReasonKind.EVICTED)
            return kind, str(condition.get("message") or why)
    return None


def _ended(
    ended: Mapping[str, Any],
    told: Mapping[str, Any],
    disruption: tuple[ReasonKind, str] | None,
    host: str | None,
) -> JobStatus:
    code, why = int(ended.get("exitCode", 0)), str(ended.get("reason") or "")
    last, words = last_word(str(ended.get("message") or ""))
    if why in {"StartError", "ContainerCannotRun"}:
        return _failed(ReasonKind.START, words or why, _STARTED_NOT, host)
    kind, _, rest = last.partition(" ")
    if kind == "start":
        return _failed(ReasonKind.START, rest, _STARTED_NOT, host)
    if kind == "signal":
        exit_code = -int(rest)
    elif kind == "exit":
        exit_code = int(rest)
    else:
        # nothing is written down: it is how signals are told of processes
        exit_code = 128 - code if code - 128 in _SIGNALS else code
    if why == "OOMKilled" and exit_code != 0:
        return _failed(ReasonKind.OOM, "it used more memory than it may, and was killed", exit_code, host)  # fmt: skip
    if exit_code == 0 and not (disruption or told.get("reason") in _POD_REASONS):
        return JobStatus(
            state=JobState.SUCCEEDED, reason=Reason(ReasonKind.EXIT, 0), exit_code=0, host=host
        )
    if disruption is not None:
        return _failed(*disruption, exit_code, host)
    pod_reason, pod_words = str(told.get("reason") or ""), str(told.get("message") or "").strip()
    if pod_reason in _POD_REASONS:
        return _failed(_POD_REASONS[pod_reason], pod_words or pod_reason, exit_code, host)
    reason = (
        Reason(ReasonKind.SIGNAL, -exit_code)
        if exit_code < 0
        else Reason(ReasonKind.EXIT, exit_code)
    )
    message = f"killed by {_name(-exit_code)}" if exit_code < 0 else f"ended with exit code {code}"
    if pod_reason == "DeadlineExceeded":
        message = pod_words or pod_reason
    elif words and why != "Completed":
        message = words
    return JobStatus(
        state=JobState.FAILED, reason=reason, exit_code=exit_code, message=message, host=host
    )


def _pod_failed(
    told: Mapping[str, Any], disruption: tuple[ReasonKind, str] | None, host: str | None
) -> JobStatus:
    """A pod that ended, and no container of it has an end of its own."""
    if disruption is not None:
        return _failed(*disruption, _KILLED, host)
    why, words = str(told.get("reason") or ""), str(told.get("message") or "").strip()
    kind = _POD_REASONS.get(why, ReasonKind.UNKNOWN)
    if why.startswith("OutOf"):
        kind = ReasonKind.UNSCHEDULABLE
    for one in told.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            kind = ReasonKind.START
            words = (
                words or f"init container {one['name']} ended with exit code {ended['exitCode']}"
            )
    return _failed(kind, words or why or "its pod failed", _KILLED, host)


def _pending(told: Mapping[str, Any], waiting: Mapping[str, Any], host: str | None) -> JobStatus:
    why, words = str(waiting.get("reason") or ""), str(waiting.get("message") or "").strip()
    said = f"{why}: {words}" if words and why else words or why
    if why in _NEVER:
        return _failed(_NEVER[why], said, _STARTED_NOT, host)
    if why in _PERHAPS:
        if _PERHAPS[why] is ReasonKind.IMAGE and _FINAL.search(words):
            return _failed(ReasonKind.IMAGE, said, _STARTED_NOT, host)
        return JobStatus(
            state=JobState.PENDING, reason=Reason(_PERHAPS[why]), message=said, host=host
        )
    for condition in told.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return JobStatus(
                state=JobState.PENDING,
                reason=Reason(ReasonKind.UNSCHEDULABLE),
                message=str(condition.get("message") or condition.get("reason") or ""),
            )
    return JobStatus(state=JobState.PENDING, host=host)


def _is_hopeless(message: str) -> bool:
    """True where no node there is could take the pod, were all others gone.

    The scheduler says whether taking away others' places would help, node by node.
    """
    found = re.search(r"preemption: 0/(\d+) nodes are available: (\d+) Preemption is not helpful", message)  # fmt: skip
    if found is None or found[1] != found[2]:
        return False
    nodes = message.partition("preemption:")[0].partition("nodes are available: ")[2]
    reasons = [one for one in re.split(r", (?=\d)", nodes.split(". ", 1)[0]) if one]
    return any(not _NODES_PASSING.search(one) for one in reasons)


def _failed(kind: ReasonKind, message: str, code: int, host: str | None) -> JobStatus:
    return JobStatus(
        state=JobState.FAILED, reason=Reason(kind), exit_code=code, message=message, host=host
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
