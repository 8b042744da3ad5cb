"""Runs whose program is gone: their Leases have expired, and nobody is left to delete them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fiber.exceptions import BackendError
from fiber_k8s.client import Client
from fiber_k8s.names import PREFIX
from fiber_k8s.run import LEASES
from fiber_k8s.status import parse_time, status_of

__all__ = ["expired", "sweep", "sweep_finished"]

log = logging.getLogger("fiber")

#: seconds after its end for which a Lease is left in peace: its program may only be slow
_SLACK = 20.0


def expired(leases: Iterable[Mapping[str, Any]], now: float) -> list[Mapping[str, Any]]:
    """Those Leases that nobody renews any more."""
    found = []
    for lease in leases:
        spec = lease.get("spec") or {}
        renewed = parse_time(spec.get("renewTime")) or parse_time(spec.get("acquireTime"))
        if renewed is None:
            # not one that we made
            continue
        if now > renewed + float(spec.get("leaseDurationSeconds") or 0) + _SLACK:
            found.append(lease)
    return found


def sweep(client: Client, *, dry_run: bool = False) -> list[str]:
    """Delete what belongs to programs that are gone; the runs that they were.

    Args:
        client: the cluster.
        dry_run: only say which.
    """
    query = {"labelSelector": f"app.kubernetes.io/managed-by=fiber,{PREFIX}run"}
    path = client.path("leases", group=LEASES)
    listed = client.call("GET", path, "list Leases", query=query).get("items") or ()
    runs = []
    for lease in expired(listed, client.now()):
        metadata = lease["metadata"]
        run_id = metadata["labels"][f"{PREFIX}run"]
        try:
            if not dry_run:
                # what it owns the cluster deletes after it
                client.delete("leases", metadata["name"], group=LEASES, uid=metadata["uid"])
        except BackendError as error:
            log.warning("fiber: run %s, whose program is gone, stays: %s", run_id, error)
        else:
            runs.append(run_id)
    return runs


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
    over = []
    for run_id, members in runs.items():
        if not all(status_of(pod).state.is_terminal for pod in members):
            continue
        over.append(run_id)
        for pod in () if dry_run else members:
            client.delete("pods", pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    return over
