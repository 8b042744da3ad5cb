"""Objects of a run in the cluster: a Lease that owns its pods, and a Secret with its key.

The annotations and labels are read by ``sweeping``, which deletes the Leases of dead programs.
"""

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

from fiber.backend_parts.liveness import Owner
from fiber.backend_parts.private import KEY_BYTES, seal
from fiber.exceptions import BackendError, SubmitError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.flow_control import RetryWindow
from fiber_k8s.names import PREFIX, label_value, object_name

log = logging.getLogger("fiber")

#: group and version of Leases
LEASES = "coordination.k8s.io/v1"
#: annotations of a Lease: the process that made it, and the container which that process was in
OWNER, CONTAINER = f"{PREFIX}owner", f"{PREFIX}container"
#: renewals of a Lease within its duration
RENEWALS = 4.0


class RunObjects:
    """The Lease and the Secret of one run, created when they are first needed; thread-safe.

    A thread renews the Lease until :meth:`close`. Kubernetes' garbage collector deletes what the
    Lease owns after it, and the Lease after its own owner, the program's pod. Where another client
    deletes the Lease it is created again, for objects whose owner is gone are deleted at once.

    Args:
        client: the cluster.
        run_id: the run.
        duration: seconds that the Lease lasts without a renewal.
        user: name of the user, for labels.
    """

    def __init__(self, client: Client, run_id: str, duration: float, user: str) -> None:
        self._client = client
        self._run_id = run_id
        self._duration = duration
        self._user = user
        #: guards the Lease and the Secret
        self._lock = threading.Lock()
        #: held during a renewal; taken before the other lock
        self._renewing = threading.Lock()
        self._key = secrets.token_bytes(KEY_BYTES)
        self._parent: Mapping[str, Any] | None = None
        self._lease: Mapping[str, Any] | None = None
        self._has_secret = False
        #: monotonic time of the last :meth:`recheck`
        self._recheck_asked = float("-inf")
        #: monotonic time at which the last successful renewal began
        self._renewed = 0.0
        self._closing = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Name of the Lease and of the Secret."""
        return object_name(self._run_id)

    def owner(self, parent: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the Lease as an owner reference; the first call creates it.

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
        if self._needs_recheck:
            # an object with a deleted owner would be deleted as soon as it is created
            try:
                self._renew_once(
                    RetryWindow("renew the run's Lease", self._client.core_timing).allows,
                    only_if_asked=True,
                )
            except ApiError as error:
                # the Lease exists, or the next creation is refused as well
                log.debug("fiber: the run's Lease is not renewed: %s", error)
            with self._lock:
                lease = self._lease or lease
        return owner_reference(lease)

    def seal(self, private: bytes, owner: Mapping[str, Any] | None) -> str:
        """Encrypt a job's private bytes with the key in the Secret; the first call creates it.

        Raises:
            SubmitError: the cluster refused it.
        """
        with self._lock:
            if not self._has_secret:
                self._make_secret(owner)
                self._has_secret = True
        return seal(private, self._key)

    def recheck(self) -> None:
        """Check soon whether the Lease exists: another client deletes a pod of the run."""
        self._recheck_asked = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """Stop renewing, and delete the Lease with what it owns. Idempotent."""
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
    def _needs_recheck(self) -> bool:
        return self._recheck_asked >= self._renewed

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
            is_needed=lambda: not self._closing,
        )
        return self._find_lease() if made is None else made

    def _container(self) -> str | None:
        """Return the name of this process's container; None where not known."""
        if self._parent is None:
            return None
        own_pod = self._client.connection.own_pod
        if own_pod is not None and own_pod.container is not None:
            return own_pod.container
        names = [one["name"] for one in self._parent["spec"]["containers"]]
        return names[0] if len(names) == 1 else None

    def _make_secret(self, owner: Mapping[str, Any] | None) -> None:
        body = secret_body(self.name, self._run_id, self._key, owner)
        what = "create the run's Secret"
        if self._client.create("secrets", body, what) is None:
            # an earlier try of ours, or somebody else's: nobody may read it, so it is made again
            self._client.delete("secrets", self.name)
            if self._client.create("secrets", body, what) is None:
                msg = f"the run's Secret {self.name} cannot be made: somebody else makes one of its name"
                raise SubmitError(msg)

    def _find_lease(self) -> Mapping[str, Any]:
        """Return the Lease that a try created whose answer was lost, for its uid."""
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
        wait, failing, is_logged = interval, 0.0, False
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            if self._closing:
                return
            began = time.monotonic()
            try:
                self._renew_once()
            except BackendError as error:
                # retried soon: after an outage other calls wait for a renewal
                wait = min(interval, self._client.timing.renewal_retry)
                failing += time.monotonic() - began + wait
                # a single failure is normal: load balancers close idle connections
                if failing > interval and not is_logged:
                    is_logged = True
                    log.warning("fiber: the run's Lease is not renewed: %s", error)
            else:
                wait, failing, is_logged = interval, 0.0, False

    def _renew_once(
        self,
        again: Callable[[BackendError], bool] = lambda _: False,
        *,
        only_if_asked: bool = False,
    ) -> None:
        """Renew the Lease; create it again where another client deleted it.

        Args:
            again: called with the error before each retry; False ends them.
            only_if_asked: do nothing where another thread has renewed it meanwhile.

        Raises:
            BackendError: neither can be done now.
        """
        with self._renewing:
            if only_if_asked and not self._needs_recheck:
                return
            began = time.monotonic()
            try:
                self._client.call(
                    "PATCH",
                    self._client.path("leases", self.name, group=LEASES),
                    "renew the run's Lease",
                    body={"spec": {"renewTime": micro_time(self._client.now())}},
                    timeout=self._duration / RENEWALS,
                    again=lambda error: not self._closing and again(error),
                )
            except BackendError as error:
                if not _is_gone(error) or self._closing:
                    raise
                self._recreate()
            self._renewed = began

    def _recreate(self) -> None:
        """Create the Lease again, with a new Secret, and make it the owner of the run's pods."""
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
                # where this fails the next job creates it
                self._has_secret = False
                # the garbage collector deletes it with its owner, now or later
                self._client.delete("secrets", self.name)
                self._make_secret(owner)
                self._has_secret = True
        log.warning(
            "fiber: the run's Lease %s was deleted by somebody else; it was made again, and jobs that the "
            "cluster ends meanwhile are lost",
            self.name,
        )
        try:
            self._adopt_pods(former["metadata"]["uid"], owner)
        except BackendError as error:
            log.warning(
                "fiber: pods of the run are removed with its former Lease, for they cannot be handed "
                "over to the new one: %s",
                error,
            )

    def _adopt_pods(self, former: str, owner: Mapping[str, Any]) -> None:
        """Change the owner of pods that are not being deleted from a former Lease to another."""
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
                )
            except ApiError as error:
                # it is gone meanwhile, or another pod has its name
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
    """Return the body of a run's Lease.

    Args:
        name: of it.
        run_id: the run.
        duration: seconds that it lasts.
        now: seconds since the epoch.
        user: name of the user, for a label.
        parent: the pod that owns it.
        container: name of the container in that pod in which the program runs, where known.
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
    """Return the body of a run's Secret, or of a job's own.

    Args:
        name: of it.
        run_id: the run.
        key: its content.
        owner: owner reference, with which it is deleted.
        field: name of the content in ``data``.
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
    """Return the owner reference to an object; a Pod where it names no kind."""
    kind = thing.get("kind") or "Pod"
    return {
        "apiVersion": thing.get("apiVersion") or "v1",
        "kind": kind,
        "name": thing["metadata"]["name"],
        "uid": thing["metadata"]["uid"],
    }


def micro_time(seconds: float) -> str:
    """Return seconds since the epoch as a MicroTime (RFC 3339 with microseconds, UTC)."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
