"""What a run has in the cluster: a Lease that owns the rest, and a Secret with its key."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from fiber.exceptions import BackendError, SubmitError
from fiber.launch.private import KEY_BYTES, seal
from fiber_k8s.client import Client
from fiber_k8s.names import PREFIX, label_value, object_name

__all__ = ["LEASES", "Belongings", "lease_body", "owner_reference", "secret_body"]

log = logging.getLogger("fiber")

#: group and version of Leases
LEASES = "coordination.k8s.io/v1"
#: seconds between two renewals, as a part of how long the Lease lasts
_RENEWALS = 4.0
#: failed renewals, one after the other, that are worth a word
_FAILURES = 2


class Belongings:
    """The Lease and the Secret of one run, made when they are first needed; thread-safe.

    The Lease is renewed while this is open. What it owns the cluster removes after it; where its
    owner, the program's own pod, is deleted, it goes itself.

    Args:
        client: the cluster.
        run_id: the run.
        duration: seconds that the Lease lasts without a renewal.
        user: whose run it is, for people.
    """

    def __init__(self, client: Client, run_id: str, duration: float, user: str) -> None:
        self._client = client
        self._run_id = run_id
        self._duration = duration
        self._user = user
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(KEY_BYTES)
        self._lease: Mapping[str, Any] | None = None
        self._has_secret = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Name of the Lease and of the Secret."""
        return object_name(self._run_id)

    def owner(self, parent: Mapping[str, Any] | None) -> dict[str, Any]:
        """The Lease as an owner reference; it is made with the first call.

        Args:
            parent: the program's own pod, which owns the Lease; None where there is none.

        Raises:
            SubmitError: the cluster refused it.
        """
        with self._lock:
            if self._lease is None:
                self._lease = self._make_lease(parent)
                self._thread = threading.Thread(
                    target=self._renew, name="fiber-k8s-lease", daemon=True
                )
                self._thread.start()
            return owner_reference(self._lease)

    def seal(self, private: bytes, owner: Mapping[str, Any] | None) -> str:
        """A job's private bytes, for those who have the Secret; it is made with the first call.

        Raises:
            SubmitError: the cluster refused it.
        """
        with self._lock:
            if not self._has_secret:
                body = secret_body(self.name, self._run_id, self._key, owner)
                self._client.create("secrets", body, "create the run's Secret")
                self._has_secret = True
        return seal(private, self._key)

    def close(self) -> None:
        """End renewing, and delete the Lease with what it owns. Idempotent."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        with self._lock:
            lease, self._lease = self._lease, None
            had_secret, self._has_secret = self._has_secret, False
        if lease is not None:
            uid = lease["metadata"]["uid"]
            self._client.delete("leases", self.name, group=LEASES, uid=uid)
        elif had_secret:
            self._client.delete("secrets", self.name)

    # -- within

    def _make_lease(self, parent: Mapping[str, Any] | None) -> Mapping[str, Any]:
        body = lease_body(
            self.name, self._run_id, self._duration, self._client.now(), self._user, parent
        )
        made = self._client.create("leases", body, "create the run's Lease", group=LEASES)
        return self._find_lease() if made is None else made

    def _find_lease(self) -> Mapping[str, Any]:
        """The Lease that was made by a try whose answer was lost: its owner's id is needed."""
        path = self._client.path("leases", group=LEASES)
        query = {"labelSelector": f"{PREFIX}run={self._run_id}"}
        found = self._client.call("GET", path, "find the run's Lease", query=query)
        for one in found.get("items") or ():
            if one["metadata"]["name"] == self.name:
                return {"apiVersion": LEASES, "kind": "Lease", **one}
        msg = f"the run's Lease {self.name} was made and is gone again; somebody deletes what others make"
        raise SubmitError(msg)

    def _renew(self) -> None:
        path = self._client.path("leases", self.name, group=LEASES)
        failures = 0
        while not self._closing.wait(self._duration / _RENEWALS):
            body = {"spec": {"renewTime": micro_time(self._client.now())}}
            try:
                self._client.call(
                    "PATCH",
                    path,
                    "renew the run's Lease",
                    body=body,
                    content_type="application/merge-patch+json",
                    timeout=self._duration / _RENEWALS,
                )
                failures = 0
            except BackendError as error:
                failures += 1
                # one try may fail by itself: balancers close connections that were quiet for a while
                if failures == _FAILURES:
                    log.warning(
                        "fiber: the run's Lease is not renewed, others may end it: %s", error
                    )


def lease_body(
    name: str,
    run_id: str,
    duration: float,
    now: float,
    user: str,
    parent: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The body of the call that creates a run's Lease.

    Args:
        name: of it.
        run_id: the run.
        duration: seconds that it lasts.
        now: seconds since the epoch.
        user: whose run it is.
        parent: the pod that owns it.
    """
    labels = {"app.kubernetes.io/managed-by": "fiber", f"{PREFIX}run": run_id}
    if label_value(user):
        labels[f"{PREFIX}user"] = label_value(user)
    metadata: dict[str, Any] = {"name": name, "labels": labels}
    if parent is not None:
        metadata["ownerReferences"] = [owner_reference(parent)]
    return {
        "apiVersion": LEASES,
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": f"{socket.gethostname()}:{os.getpid()}",
            "leaseDurationSeconds": max(1, round(duration)),
            "acquireTime": micro_time(now),
            "renewTime": micro_time(now),
        },
    }


def secret_body(
    name: str, run_id: str, key: bytes, owner: Mapping[str, Any] | None, field: str = "key"
) -> dict[str, Any]:
    """The body of the call that creates a run's Secret, or a job's own.

    Args:
        name: of it.
        run_id: the run.
        key: what is in it.
        owner: what it goes with.
        field: under which name.
    """
    labels = {"app.kubernetes.io/managed-by": "fiber", f"{PREFIX}run": run_id}
    metadata: dict[str, Any] = {"name": name, "labels": labels}
    if owner is not None:
        metadata["ownerReferences"] = [dict(owner)]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "immutable": True,
        "data": {field: base64.b64encode(key).decode()},
    }


def owner_reference(thing: Mapping[str, Any]) -> dict[str, Any]:
    """Another object's word for the one that it goes with."""
    kind = thing.get("kind") or "Pod"
    return {
        "apiVersion": thing.get("apiVersion") or "v1",
        "kind": kind,
        "name": thing["metadata"]["name"],
        "uid": thing["metadata"]["uid"],
    }


def micro_time(seconds: float) -> str:
    """A time as a Lease has it."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
