"""Runs whose program is gone: what their Leases own is removed where their end is proven.

A Lease that looks expired proves nothing by itself: nobody could renew one while the API server was
away. Such Leases are candidates, and a candidate's program is dead where one of these is proven:

* the process that made the Lease is one of this PID namespace, and has ended;
* the pod that it ran in, the Lease's owner, has ended;
* the Lease was observed not to be renewed for as long as it lasts, by this process's clock, while
  the API server answered each look; and none of the run's pods runs, nor the container that its
  program ran in. A program that reaches the API server renews several times in that time, and the
  processes of one that has died end by themselves, so a run with neither has nothing that lives.

A Lease is deleted only as it was seen: one that was renewed meanwhile stays.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Liveness, Observation, Owner
from fiber.exceptions import BackendError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.names import PREFIX
from fiber_k8s.run import CONTAINER, LEASES, OWNER, RENEWALS
from fiber_k8s.status import has_ended, has_running_container, parse_time, status_of

__all__ = ["SLACK", "Doubt", "Look", "Sweeper", "doubt_of", "expired", "sweep_finished"]

log = logging.getLogger("fiber")

#: seconds after its end for which a Lease is left in peace: its program may only be slow
SLACK = 20.0
#: how much later than it was to come a look may be before all is observed anew
_LATE = 2.0
_MANAGED = "app.kubernetes.io/managed-by=fiber"


class Doubt(enum.Enum):
    """What speaks for it that the program of a Lease which is not renewed lives, beside time."""

    #: nothing
    NONE = "nothing of it runs"
    #: its workers end by themselves once it is dead
    PODS = "its pods run"
    #: it may be cut off from the API server
    MASTER = "the pod of its program runs"


@attrs.frozen(kw_only=True)
class Look:
    """What one look at the Leases of a namespace found."""

    #: runs that were removed, or would be
    removed: tuple[str, ...] = ()
    #: runs that may be removed after more looks, with the seconds for which each is observed still
    observed: Mapping[str, float] = attrs.field(factory=dict)
    #: runs that nobody renews and that stay
    kept: Mapping[str, Doubt] = attrs.field(factory=dict)
    #: seconds until the next look
    interval: float = 0.0


def expired(leases: Iterable[Mapping[str, Any]], now: float) -> list[Mapping[str, Any]]:
    """Those Leases that nobody seems to renew any more.

    Args:
        leases: as the cluster has them.
        now: seconds since the epoch by the cluster's clock.
    """
    found = []
    for lease in leases:
        spec = lease.get("spec") or {}
        renewed = parse_time(spec.get("renewTime")) or parse_time(spec.get("acquireTime"))
        if renewed is None:
            # not one that we made
            continue
        if now > renewed + _duration(lease) + SLACK:
            found.append(lease)
    return found


def doubt_of(
    lease: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], master: Mapping[str, Any] | None
) -> Doubt:
    """What speaks for it that the program of a Lease lives.

    Args:
        lease: as the cluster has it.
        pods: those of its run.
        master: the pod that owns it; None where there is none.
    """
    if any(map(has_running_container, pods)):
        return Doubt.PODS
    if master is not None and _runs_still(lease, master):
        return Doubt.MASTER
    return Doubt.NONE


def _runs_still(lease: Mapping[str, Any], master: Mapping[str, Any]) -> bool:
    """True where the container runs in which a Lease was made, and was not started anew since."""
    name = _annotation(lease, CONTAINER)
    statuses = (master.get("status") or {}).get("containerStatuses") or ()
    box = next((one for one in statuses if one.get("name") == name), None)
    if box is None:
        return has_running_container(master)
    running = (box.get("state") or {}).get("running")
    if running is None:
        return False
    started = parse_time(running.get("startedAt"))
    made = parse_time((lease.get("spec") or {}).get("acquireTime"))
    is_new = started is not None and made is not None and started > made
    return not (box.get("restartCount") and is_new)


class Sweeper:
    """Looks at the Leases of a namespace, again and again, and removes the runs proven to be over.

    Args:
        client: the cluster.
        dry_run: only say which.
        clock: monotonic seconds.
    """

    def __init__(
        self, client: Client, *, dry_run: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._dry_run = dry_run
        self._clock = clock
        self._seen: Observation[str] | None = None
        self._interval = 0.0

    def look(self) -> Look:
        """Look once.

        Raises:
            BackendError: the cluster did not answer; what was observed so far counts no more.
        """
        try:
            return self._looked()
        except BackendError:
            if self._seen is not None:
                self._seen.failed()
            raise

    # -- within

    def _looked(self) -> Look:
        query = {"labelSelector": f"{_MANAGED},{PREFIX}run"}
        path = self._client.path("leases", group=LEASES)
        listed = self._client.call("GET", path, "list Leases", query=query).get("items") or ()
        # of the moment at which they were asked for at the latest
        now = self._clock()
        leases = {one["metadata"]["uid"]: one for one in expired(listed, self._client.now())}
        if not leases:
            self._seen = None
            return Look()
        if self._seen is None:
            # as often as the most hurried of their programs renews its own
            self._interval = min(map(_duration, leases.values())) / RENEWALS
            self._seen = Observation(self._interval + max(_LATE, self._interval / 2))
        seen = self._seen
        seen.looked({uid: one["metadata"]["resourceVersion"] for uid, one in leases.items()}, now)
        pods = self._pods_by_run(leases.values())
        observed: dict[str, float] = {}
        kept: dict[str, Doubt] = {}

        def liveness_of(uid: str) -> Liveness:
            lease, run_id = leases[uid], _run_of(leases[uid])
            told, master = self._program(lease)
            if told is not Liveness.UNKNOWN:
                return told
            doubt = doubt_of(lease, pods.get(run_id, ()), master)
            if doubt is not Doubt.NONE:
                kept[run_id] = doubt
                return Liveness.UNKNOWN
            # several looks in any case
            left = max(_duration(lease), self._interval * RENEWALS) - seen.unchanged(uid)
            if left > 0:
                observed[run_id] = left
                return Liveness.UNKNOWN
            return Liveness.DEAD

        removed = liveness.sweep(leases, liveness_of, lambda uid: self._remove(leases[uid]))
        return Look(
            removed=tuple(_run_of(leases[uid]) for uid in removed),
            observed=observed,
            kept=kept,
            interval=self._interval,
        )

    def _pods_by_run(
        self, leases: Iterable[Mapping[str, Any]]
    ) -> dict[str, list[Mapping[str, Any]]]:
        runs = ",".join(sorted(map(_run_of, leases)))
        found: dict[str, list[Mapping[str, Any]]] = {}
        for pod in self._client.pods(f"{_MANAGED},{PREFIX}run in ({runs})"):
            found.setdefault(pod["metadata"]["labels"][f"{PREFIX}run"], []).append(pod)
        return found

    def _program(self, lease: Mapping[str, Any]) -> tuple[Liveness, Mapping[str, Any] | None]:
        """Whether the program of a Lease lives, and the pod that it ran in."""
        process = Owner.decode(_annotation(lease, OWNER))
        told = Liveness.UNKNOWN if process is None else process.liveness()
        if told is not Liveness.UNKNOWN:
            return told, None
        for reference in lease["metadata"].get("ownerReferences") or ():
            if reference.get("kind") == "Pod":
                master = self._pod(reference)
                # where it is gone the cluster deletes the Lease by itself
                over = master is None or has_ended(master)
                return (Liveness.DEAD if over else Liveness.UNKNOWN), master
        return Liveness.UNKNOWN, None

    def _pod(self, reference: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            found = self._client.pod(reference["name"])
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found if found["metadata"]["uid"] == reference["uid"] else None

    def _remove(self, lease: Mapping[str, Any]) -> bool:
        if self._dry_run:
            return True
        metadata = lease["metadata"]
        try:
            # what it owns the cluster deletes after it
            return self._client.delete(
                "leases",
                metadata["name"],
                group=LEASES,
                uid=metadata["uid"],
                version=metadata["resourceVersion"],
            )
        except BackendError as error:
            log.warning("fiber: run %s, whose program is gone, stays: %s", _run_of(lease), error)
            return False


def sweep_finished(client: Client, *, dry_run: bool = False) -> list[str]:
    """Delete programs that outlived their starter and have ended; the runs that they were.

    Args:
        client: the cluster.
        dry_run: only say which.
    """
    pods = client.pods(f"app.kubernetes.io/managed-by=fiber,{PREFIX}detached=true")
    runs: dict[str, list[dict[str, Any]]] = {}
    for pod in pods:
        runs.setdefault(pod["metadata"]["labels"].get(f"{PREFIX}run", ""), []).append(pod)

    def liveness_of(run_id: str) -> Liveness:
        ended = all(status_of(pod).state.is_terminal for pod in runs[run_id])
        return Liveness.DEAD if ended else Liveness.ALIVE

    def remove(run_id: str) -> bool:
        for pod in () if dry_run else runs[run_id]:
            client.delete("pods", pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        return True

    return liveness.sweep(runs, liveness_of, remove)


def _duration(lease: Mapping[str, Any]) -> float:
    # the API knows no shorter ones
    return max(1.0, float((lease.get("spec") or {}).get("leaseDurationSeconds") or 0))


def _run_of(lease: Mapping[str, Any]) -> str:
    return str(lease["metadata"]["labels"][f"{PREFIX}run"])


def _annotation(lease: Mapping[str, Any], key: str) -> str:
    return str((lease["metadata"].get("annotations") or {}).get(key, ""))
