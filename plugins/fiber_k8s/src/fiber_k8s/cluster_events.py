"""What the cluster's events tell of pods that wait, where their status does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from fiber.exceptions import BackendError
from fiber.model import Job, JobStatus, Reason, ReasonKind
from fiber_k8s.client import ApiError, Client
from fiber_k8s.deadlines import Deadlines
from fiber_k8s.status import parse_time

__all__ = ["Slow", "is_scaling", "latest_words"]

#: how autoscalers tell a pod that a node is made for it: the cluster's own, and Karpenter
_SCALING = frozenset({"TriggeredScaleUp", "Nominated"})
#: seconds that a new node may take
_NODE = 900.0
#: seconds until it is asked why a container is not made yet, and between two such questions
_FIRST, _MOST = 15.0, 300.0
_PAGE = 500
_KEY = "slow"


def is_scaling(client: Client, pod: str) -> bool:
    """True where an autoscaler is at work for a pod: it may take minutes.

    Args:
        client: the cluster.
        pod: name of the pod.
    """
    try:
        found = _events(client, f"involvedObject.name={pod}")
    except BackendError:
        # who may not ask waits no longer than those who may
        return False
    since = client.now() - _NODE
    return any(
        one.get("reason") in _SCALING and (parse_time(_time(one)) or 0.0) > since for one in found
    )


def latest_words(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What was said last of each pod, by its name; pure.

    Args:
        events: as the API has them.
    """
    found: dict[str, str] = {}
    for one in sorted(events, key=_time):
        name = str((one.get("involvedObject") or {}).get("name"))
        found[name] = f"{one.get('reason')}: {one.get('message')}"
    return found


class Slow:
    """Asks after pods that have a node and no container yet: volumes or a network may be missing.

    One question is for all of them, and each next one comes after twice as long. Nobody is given up
    for it: such things are often there in the end.

    Args:
        client: the cluster.
        deadlines: calls at their time.
        tell: told of a pod's status with the words of events.
    """

    def __init__(
        self, client: Client, deadlines: Deadlines, tell: Callable[[Job, JobStatus], None]
    ) -> None:
        self._client = client
        self._deadlines = deadlines
        self._tell = tell
        self._lock = threading.Lock()
        self._pods: dict[str, tuple[Job, JobStatus]] = {}
        self._wait = _FIRST
        #: True once events are none of our business
        self._refused = False

    def add(self, job: Job, status: JobStatus) -> None:
        """A pod waits for its container."""
        with self._lock:
            if self._refused:
                return
            self._pods[job.id] = (job, status)
            wait = self._wait
        self._deadlines.set(_KEY, wait, self._ask)

    def drop(self, job_id: str) -> None:
        """A pod waits no more, or for something else."""
        with self._lock:
            self._pods.pop(job_id, None)

    def _ask(self) -> None:
        with self._lock:
            if not self._pods:
                self._wait = _FIRST
                return
        try:
            told = latest_words(_events(self._client, "involvedObject.kind=Pod,type=Warning"))
        except BackendError as error:
            told = {}
            if isinstance(error, ApiError) and error.status == 403:
                with self._lock:
                    self._refused = True
                    self._pods.clear()
                return
        with self._lock:
            for name, words in told.items():
                known = self._pods.get(name)
                if known is None or known[1].message == words:
                    continue
                job, status = known
                status = attrs.evolve(status, reason=Reason(ReasonKind.START), message=words)
                self._pods[name] = (job, status)
                # within the lock, so that it is not told behind what comes after it
                self._tell(job, status)
            self._wait = wait = min(_MOST, self._wait * 2)
        self._deadlines.set(_KEY, wait, self._ask)


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
