"""What a run has in the cluster: a Lease that owns the rest, and a Secret with its key."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from fiber._agent.private import KEY_BYTES, seal
from fiber.backend_parts.liveness import Owner
from fiber.exceptions import BackendError, SubmitError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.names import PREFIX, label_value, object_name
from fiber_k8s.pacing import Patience

__all__ = [
    "CONTAINER",
    "LEASES",
    "OWNER",
    "RENEWALS",
    "Belongings",
    "lease_body",
    "owner_reference",
    "secret_body",
]

log = logging.getLogger("fiber")

#: group and version of Leases
LEASES = "coordination.k8s.io/v1"
#: annotations of a Lease: the process that made it, and the container of its pod which that was in
OWNER, CONTAINER = f"{PREFIX}owner", f"{PREFIX}container"
#: how often a Lease is renewed in the time that it lasts
RENEWALS = 4.0
#: seconds after which a renewal that failed is tried again
_AGAIN = 2.0
_MERGE = "application/merge-patch+json"


class Belongings:
    """The Lease and the Secret of one run, made when they are first needed; thread-safe.

    The Lease is renewed while this is open. What it owns the cluster removes after it; where its
    owner, the program's own pod, is deleted, it goes itself. Where somebody else deletes it, it is
    made again, for what is created under one that is gone the cluster removes at once.

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
        #: held by those who use the Lease and the Secret
        self._lock = threading.Lock()
        #: held by whoever renews the Lease, and taken before the other one
        self._renewing = threading.Lock()
        self._key = secrets.token_bytes(KEY_BYTES)
        self._parent: Mapping[str, Any] | None = None
        self._lease: Mapping[str, Any] | None = None
        self._has_secret = False
        #: when something spoke last for it that the Lease is gone
        self._doubted = float("-inf")
        #: when the last renewal began that was answered
        self._renewed = 0.0
        self._closing = False
        self._wake = threading.Event()
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
            lease = self._lease
            if lease is None:
                self._parent = parent
                lease = self._lease = self._make_lease()
                self._thread = threading.Thread(
                    target=self._renew, name="fiber-k8s-lease", daemon=True
                )
                self._thread.start()
        if self._in_doubt:
            # whatever it owned would be removed as soon as it is created
            try:
                self._renew_once(Patience("renew the run's Lease").lasts, only_in_doubt=True)
            except ApiError as error:
                # it is there, or what is created next is refused as well
                log.debug("fiber: the run's Lease is not renewed: %s", error)
            with self._lock:
                lease = self._lease or lease
        return owner_reference(lease)

    def seal(self, private: bytes, owner: Mapping[str, Any] | None) -> str:
        """A job's private bytes, for those who have the Secret; it is made with the first call.

        Raises:
            SubmitError: the cluster refused it.
        """
        with self._lock:
            if not self._has_secret:
                self._make_secret(owner)
                self._has_secret = True
        return seal(private, self._key)

    def doubt(self) -> None:
        """A pod of the run is being removed, and not by this program: see whether the Lease is there."""
        self._doubted = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """End renewing, and delete the Lease with what it owns. Idempotent."""
        self._closing = True
        self._wake.set()
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

    @property
    def _in_doubt(self) -> bool:
        return self._doubted >= self._renewed

    def _make_lease(self) -> Mapping[str, Any]:
        body = lease_body(
            self.name,
            self._run_id,
            self._duration,
            self._client.now(),
            self._user,
            self._parent,
            self._container(),
        )
        made = self._client.create(
            "leases",
            body,
            "create the run's Lease",
            group=LEASES,
            is_wanted=lambda: not self._closing,
        )
        return self._find_lease() if made is None else made

    def _container(self) -> str | None:
        """The container of the program's own pod that this is; None where that is not known."""
        if self._parent is None:
            return None
        inside = self._client.connection.inside
        if inside is not None and inside.container is not None:
            return inside.container
        names = [one["name"] for one in self._parent["spec"]["containers"]]
        return names[0] if len(names) == 1 else None

    def _make_secret(self, owner: Mapping[str, Any] | None) -> None:
        body = secret_body(self.name, self._run_id, self._key, owner)
        self._client.create("secrets", body, "create the run's Secret")

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
        interval = self._duration / RENEWALS
        wait, failing, is_told = interval, 0.0, False
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            if self._closing:
                return
            began = time.monotonic()
            try:
                self._renew_once()
            except BackendError as error:
                # one that was late is made up for soon: others wait for it where the cluster was away
                wait = min(interval, _AGAIN)
                failing += time.monotonic() - began + wait
                # one try may fail by itself: balancers close connections that were quiet for a while
                if failing > interval and not is_told:
                    is_told = True
                    log.warning("fiber: the run's Lease is not renewed: %s", error)
            else:
                wait, failing, is_told = interval, 0.0, False

    def _renew_once(
        self,
        again: Callable[[BackendError], bool] = lambda _: False,
        *,
        only_in_doubt: bool = False,
    ) -> None:
        """Renew the Lease; make it again where somebody deleted it.

        Args:
            again: asked before each further try where the cluster is away or busy.
            only_in_doubt: not where somebody else has done it meanwhile.

        Raises:
            BackendError: neither can be done now.
        """
        with self._renewing:
            if only_in_doubt and not self._in_doubt:
                return
            began = time.monotonic()
            try:
                self._client.call(
                    "PATCH",
                    self._client.path("leases", self.name, group=LEASES),
                    "renew the run's Lease",
                    body={"spec": {"renewTime": micro_time(self._client.now())}},
                    content_type=_MERGE,
                    timeout=self._duration / RENEWALS,
                    again=lambda error: not self._closing and again(error),
                )
            except BackendError as error:
                if not _is_gone(error) or self._closing:
                    raise
                self._replace()
            self._renewed = began

    def _replace(self) -> None:
        """Make the Lease again, and give it what the one before had, as far as that is there."""
        with self._lock:
            former = self._lease
            if former is None:
                return
            try:
                self._lease = self._make_lease()
            except BackendError as error:
                msg = (
                    f"the run's Lease {self.name} was deleted by somebody else, and the cluster ends "
                    f"the run's jobs; it cannot be made again: {error}"
                )
                raise SubmitError(msg) from error
            owner = owner_reference(self._lease)
            if self._has_secret:
                # where this fails the next job makes it
                self._has_secret = False
                # the cluster removes it with its owner, now or later
                self._client.delete("secrets", self.name)
                self._make_secret(owner)
                self._has_secret = True
        log.warning(
            "fiber: the run's Lease %s was deleted by somebody else; it was made again, and jobs that the "
            "cluster ends meanwhile are lost",
            self.name,
        )
        try:
            self._hand_over(former["metadata"]["uid"], owner)
        except BackendError as error:
            log.warning(
                "fiber: pods of the run are removed with its former Lease, for they cannot be handed "
                "over to the new one: %s",
                error,
            )

    def _hand_over(self, former: str, owner: Mapping[str, Any]) -> None:
        """Have pods of a Lease that is gone, which the cluster has not removed yet, belong to another."""
        for pod in self._client.pods(f"{PREFIX}run={self._run_id}"):
            metadata = pod["metadata"]
            owners = metadata.get("ownerReferences") or []
            if metadata.get("deletionTimestamp") or former not in {one["uid"] for one in owners}:
                continue
            body = {
                "metadata": {
                    "uid": metadata["uid"],
                    "ownerReferences": [
                        dict(owner) if one["uid"] == former else one for one in owners
                    ],
                }
            }
            try:
                self._client.call(
                    "PATCH",
                    self._client.path("pods", metadata["name"]),
                    f"hand pod {metadata['name']} over to the run's new Lease",
                    body=body,
                    content_type=_MERGE,
                )
            except ApiError as error:
                # it is gone meanwhile, or another one has its name
                if error.status not in (404, 409):
                    raise


def _is_gone(error: BackendError) -> bool:
    return isinstance(error, ApiError) and error.status == 404


def lease_body(
    name: str,
    run_id: str,
    duration: float,
    now: float,
    user: str,
    parent: Mapping[str, Any] | None,
    container: str | None = None,
) -> dict[str, Any]:
    """The body of the call that creates a run's Lease.

    Args:
        name: of it.
        run_id: the run.
        duration: seconds that it lasts.
        now: seconds since the epoch.
        user: whose run it is.
        parent: the pod that owns it.
        container: the one of that pod in which the program runs, where that is known.
    """
    labels = {"app.kubernetes.io/managed-by": "fiber", f"{PREFIX}run": run_id}
    if label_value(user):
        labels[f"{PREFIX}user"] = label_value(user)
    annotations = {OWNER: Owner.current().encode()}
    metadata: dict[str, Any] = {"name": name, "labels": labels, "annotations": annotations}
    if parent is not None:
        metadata["ownerReferences"] = [owner_reference(parent)]
    if container is not None:
        annotations[CONTAINER] = container
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
