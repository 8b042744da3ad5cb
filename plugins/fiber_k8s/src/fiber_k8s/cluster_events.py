"""Event objects of pending pods: volumes or networks that fail, autoscalers that add a node.

A pod's status does not have these reasons; only its events do. They need the right to list events,
which is optional.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from fiber.exceptions import BackendError
from fiber.model import Job, JobStatus, Reason, ReasonKind
from fiber_k8s.client import ApiError, Client
from fiber_k8s.status import parse_time
from fiber_k8s.timers import Timers

__all__ = ["StuckPods", "is_scaling_up", "latest_messages"]

#: event reasons of autoscalers that add a node for a pod: Cluster Autoscaler's, and Karpenter's
_SCALING = frozenset({"TriggeredScaleUp", "Nominated"})
#: event reasons of kubelets and controllers for which a container is not made; others, such as
#: ``MissingClusterDNS`` and ``DNSConfigForming``, come with pods that run all the same
_STUCK = frozenset(
    {
        *(
            "FailedMount",
            "FailedMapVolume",
            "FailedAttachVolume",
            "FailedMountOnFilesystemMismatch",
        ),
        *("FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady"),
        *("FailedCreatePodContainer", "FailedPrepareDynamicResources"),
    }
)
_PAGE = 500
_KEY = "slow"


def is_scaling_up(client: Client, pod: str) -> bool:
    """True where an autoscaler adds a node for a pod, by an event of the last minutes.

    Args:
        client: the cluster.
        pod: name of the pod.
    """
    try:
        found = _events(client, f"involvedObject.name={pod}")
    except BackendError:
        # without the right to list events it counts as no
        return False
    since = client.now() - client.timing.scale_up
    return any(
        one.get("reason") in _SCALING and (parse_time(_time(one)) or 0.0) > since for one in found
    )


def latest_messages(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return why containers are not made, ``REASON: MESSAGE`` by the pod's name, the latest; pure.

    Args:
        events: as the API returned them; those of other reasons are left out.
    """
    found: dict[str, str] = {}
    for one in sorted((one for one in events if one.get("reason") in _STUCK), key=_time):
        name = str((one.get("involvedObject") or {}).get("name"))
        found[name] = f"{one.get('reason')}: {one.get('message')}"
    return found


class StuckPods:
    """Polls warning events of scheduled pods whose containers are not created; thread-safe.

    One list is for all of them, after waits that double. It only adds a message to their statuses:
    missing volumes and networks are often there in the end, so no pod is given up for it.

    Args:
        client: the cluster.
        timers: delayed calls.
        publish: called with the job and its status with an event's message.
    """

    def __init__(
        self, client: Client, timers: Timers, publish: Callable[[Job, JobStatus], None]
    ) -> None:
        self._client = client
        self._timers = timers
        self._publish = publish
        self._lock = threading.Lock()
        self._pods: dict[str, tuple[Job, JobStatus]] = {}
        #: the last wait; None before the first
        self._wait: float | None = None
        #: True once the cluster refused to list events
        self._refused = False

    def add(self, job: Job, status: JobStatus) -> None:
        """Poll for a pod whose container is being created."""
        with self._lock:
            if self._refused:
                return
            self._pods[job.id] = (job, status)
            wait = self._wait or self._client.timing.stuck
        self._timers.set(_KEY, wait, self._poll)

    def drop(self, job_id: str) -> None:
        """Stop polling for a pod."""
        with self._lock:
            self._pods.pop(job_id, None)

    def _poll(self) -> None:
        with self._lock:
            if not self._pods:
                self._wait = None
                return
        try:
            messages = latest_messages(
                _events(self._client, "involvedObject.kind=Pod,type=Warning")
            )
        except BackendError as error:
            messages = {}
            if isinstance(error, ApiError) and error.status == 403:
                with self._lock:
                    self._refused = True
                    self._pods.clear()
                return
        with self._lock:
            for name, message in messages.items():
                known = self._pods.get(name)
                if known is None or known[1].message == message:
                    continue
                job, status = known
                status = attrs.evolve(status, reason=Reason(ReasonKind.START), message=message)
                self._pods[name] = (job, status)
                # within the lock, so that it is published before later statuses
                self._publish(job, status)
            timing = self._client.timing
            wait = min(timing.stuck_most, 2 * (self._wait or timing.stuck))
            self._wait = wait
        self._timers.set(_KEY, wait, self._poll)


def _events(client: Client, selector: str) -> list[Mapping[str, Any]]:
    query = {"fieldSelector": selector, "limit": _PAGE}
    found = client.call("GET", client.path("events"), "list events", query=query)
    return list(found.get("items") or ())


def _time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )
