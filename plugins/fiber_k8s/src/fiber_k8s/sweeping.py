"""Garbage collection of runs whose program has died: deletes their Leases, which own their pods.

A Lease that looks expired proves nothing by itself: nobody could renew one while the API server was
away. Such Leases are candidates, and a candidate's program is dead where one of these is proven:

* the process that made the Lease is one of this PID namespace, and has ended;
* the pod that it ran in, the Lease's owner, has ended;
* the Lease was observed not to be renewed for its whole duration, by this process's clock, while
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
from fiber.backend_parts.containers import timestamp
from fiber.backend_parts.liveness import Liveness, Observation, Owner
from fiber.exceptions import BackendError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.names import PREFIX
from fiber_k8s.run_objects import CONTAINER, LEASES, OWNER, RENEWALS
from fiber_k8s.status import has_ended, has_running_container, status_of

log = logging.getLogger("fiber")

_MANAGED = "app.kubernetes.io/managed-by=fiber"


class LifeSign(enum.Enum):
    """Sign that the program of a Lease which is not renewed may live."""

    #: none
    NONE = "nothing of it runs"
    #: pods of the run; its workers would end by themselves if it were dead
    PODS = "its pods run"
    #: the program's own pod; it may be cut off from the API server
    MASTER = "the pod of its program runs"


@attrs.frozen(kw_only=True)
class SweepResult:
    """Result of :meth:`Sweeper.sweep_once`."""

    #: ids of runs that were removed, or would be in a dry run
    removed: tuple[str, ...] = ()
    #: runs that are observed for longer, with the seconds left
    observed: Mapping[str, float] = attrs.field(factory=dict)
    #: runs that are not renewed and are kept, with the reason
    kept: Mapping[str, LifeSign] = attrs.field(factory=dict)
    #: seconds until the next call
    interval: float = 0.0


def expired(
    leases: Iterable[Mapping[str, Any]], now: float, slack: float
) -> list[Mapping[str, Any]]:
    """Return the Leases that expired some time ago, by their own times.

    Args:
        leases: as the API returned them.
        now: seconds since the epoch by the cluster's clock.
        slack: seconds after its end for which a Lease is left in peace.
    """
    found = []
    for lease in leases:
        spec = lease.get("spec") or {}
        renewed = timestamp(spec.get("renewTime")) or timestamp(spec.get("acquireTime"))
        if renewed is None:
            # not made by Fiber
            continue
        if now > renewed + _duration(lease) + slack:
            found.append(lease)
    return found


def life_sign(
    lease: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], master: Mapping[str, Any] | None
) -> LifeSign:
    """Return the sign that the program of a Lease may live.

    Args:
        lease: as the API returned it.
        pods: the pods of its run.
        master: the pod that owns it; None where there is none.
    """
    if any(map(has_running_container, pods)):
        return LifeSign.PODS
    if master is not None and _runs_still(lease, master):
        return LifeSign.MASTER
    return LifeSign.NONE


def _runs_still(lease: Mapping[str, Any], master: Mapping[str, Any]) -> bool:
    """True where the container that made the Lease runs, and was not restarted since."""
    name = _annotation(lease, CONTAINER)
    statuses = (master.get("status") or {}).get("containerStatuses") or ()
    container = next((one for one in statuses if one.get("name") == name), None)
    if container is None:
        return has_running_container(master)
    running = (container.get("state") or {}).get("running")
    if running is None:
        return False
    started = timestamp(running.get("startedAt"))
    made = timestamp((lease.get("spec") or {}).get("acquireTime"))
    is_new = started is not None and made is not None and started > made
    return not (container.get("restartCount") and is_new)


class Sweeper:
    """Observes the Leases of a namespace over several calls, and deletes those of dead programs.

    Args:
        client: the cluster.
        dry_run: delete nothing.
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

    def sweep_once(self) -> SweepResult:
        """List the Leases, and delete those whose programs are proven to be dead.

        Raises:
            BackendError: the cluster did not answer; all observations begin anew.
        """
        try:
            return self._sweep_once()
        except BackendError:
            if self._seen is not None:
                self._seen.failed()
            raise

    # -- within

    def _sweep_once(self) -> SweepResult:
        query = {"labelSelector": f"{_MANAGED},{PREFIX}run"}
        path = self._client.path("leases", group=LEASES)
        listed = self._client.call("GET", path, "list Leases", query=query).get("items") or ()
        # after the response: the list is from this moment at the latest
        now = self._clock()
        timing = self._client.timing
        old = expired(listed, self._client.now(), timing.lease_slack)
        leases = {one["metadata"]["uid"]: one for one in old}
        if not leases:
            self._seen = None
            return SweepResult()
        if self._seen is None:
            # as often as the shortest of these Leases is renewed
            self._interval = min(map(_duration, leases.values())) / RENEWALS
            self._seen = Observation(
                self._interval + max(timing.sweep_lateness, self._interval / 2)
            )
        seen = self._seen
        seen.looked({uid: one["metadata"]["resourceVersion"] for uid, one in leases.items()}, now)
        pods = self._pods_by_run(leases.values())
        observed: dict[str, float] = {}
        kept: dict[str, LifeSign] = {}

        def liveness_of(uid: str) -> Liveness:
            lease, run_id = leases[uid], _run_of(leases[uid])
            known, master = self._program(lease)
            if known is not Liveness.UNKNOWN:
                return known
            sign = life_sign(lease, pods.get(run_id, ()), master)
            if sign is not LifeSign.NONE:
                kept[run_id] = sign
                return Liveness.UNKNOWN
            # at least several calls
            left = max(_duration(lease), self._interval * RENEWALS) - seen.unchanged(uid)
            if left > 0:
                observed[run_id] = left
                return Liveness.UNKNOWN
            return Liveness.DEAD

        removed = liveness.sweep(leases, liveness_of, lambda uid: self._remove(leases[uid]))
        return SweepResult(
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
        """Return whether the program of a Lease lives, and the pod that it ran in."""
        process = Owner.decode(_annotation(lease, OWNER))
        known = Liveness.UNKNOWN if process is None else process.liveness()
        if known is not Liveness.UNKNOWN:
            return known, None
        for reference in lease["metadata"].get("ownerReferences") or ():
            if reference.get("kind") == "Pod":
                master = self._pod(reference)
                # without the pod the garbage collector deletes the Lease by itself
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
            # the garbage collector deletes what it owns
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
    """Delete the pods of detached programs that have ended; return their run ids.

    Args:
        client: the cluster.
        dry_run: delete nothing.
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
    # the API has no shorter ones
    return max(1.0, float((lease.get("spec") or {}).get("leaseDurationSeconds") or 0))


def _run_of(lease: Mapping[str, Any]) -> str:
    return str(lease["metadata"]["labels"][f"{PREFIX}run"])


def _annotation(lease: Mapping[str, Any], key: str) -> str:
    return str((lease["metadata"].get("annotations") or {}).get(key, ""))
