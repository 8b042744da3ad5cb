"""Pod groups of gang schedulers: labels on member pods (pure), and PodGroup objects.

By the documentation of Kueue ("plain pods in groups"), Volcano, and scheduler-plugins' coscheduling.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from fiber.exceptions import BackendError, SubmitError
from fiber.model import JobSpec
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.names import unique_name
from fiber_k8s.rbac import GANG_GROUPS


@attrs.frozen(kw_only=True)
class PodGroup:
    """A group of pods that start together or not at all."""

    #: scheduler: ``kueue``, ``volcano`` or ``scheduler-plugins``
    kind: str
    #: name of the group, unique in the namespace
    name: str
    #: number of members
    size: int
    #: queue of Kueue or Volcano
    queue: str | None = None

    def mark(self, pod: dict[str, Any], scheduler: str | None = None) -> None:
        """Add the group's labels, annotations and scheduler to a pod."""
        labels = pod["metadata"].setdefault("labels", {})
        annotations = pod["metadata"].setdefault("annotations", {})
        if self.kind == "kueue":
            labels["kueue.x-k8s.io/pod-group-name"] = self.name
            annotations["kueue.x-k8s.io/pod-group-total-count"] = str(self.size)
            # a lost member is never replaced within its group; without this annotation Kueue's
            # finalizer would keep it for a replacement, and the queue's quota with it
            annotations["kueue.x-k8s.io/retriable-in-group"] = "false"
            if self.queue is not None:
                labels["kueue.x-k8s.io/queue-name"] = self.queue
        elif self.kind == "volcano":
            pod["spec"]["schedulerName"] = scheduler or "volcano"
            annotations["scheduling.k8s.io/group-name"] = self.name
            if self.queue is not None:
                annotations["scheduling.volcano.sh/queue-name"] = self.queue
        else:
            pod["spec"]["schedulerName"] = scheduler or "scheduler-plugins-scheduler"
            labels["scheduling.x-k8s.io/pod-group"] = self.name

    def body(self, timeout: float, owner: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the body of the PodGroup object."""
        metadata: dict[str, Any] = {"name": self.name}
        if owner is not None:
            metadata["ownerReferences"] = [dict(owner)]
        spec: dict[str, Any] = {"minMember": self.size}
        if self.kind == "scheduler-plugins":
            spec["scheduleTimeoutSeconds"] = max(1, round(timeout))
        elif self.queue is not None:
            spec["queue"] = self.queue
        return {"apiVersion": self.api, "kind": "PodGroup", "metadata": metadata, "spec": spec}

    @property
    def api(self) -> str | None:
        """API group and version of the PodGroup object; None for Kueue, which has none."""
        version = {"volcano": "v1beta1", "scheduler-plugins": "v1alpha1"}.get(self.kind)
        return None if version is None else f"{GANG_GROUPS[self.kind]}/{version}"


class PodGroups:
    """Pod groups of a backend's gangs; thread-safe.

    A gang's object is created before its first pod, and deleted after its last one.
    """

    def __init__(self, client: Client, config: K8sConfig) -> None:
        self._client, self._config = client, config
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], PodGroup] = {}
        #: number of ended jobs, by run and gang
        self._ended: Counter[tuple[str, str]] = Counter()

    def get(self, spec: JobSpec, owner: Mapping[str, Any] | None) -> PodGroup | None:
        """Return the pod group of a job; None where it has no gang, or no gang scheduler is set.

        Raises:
            SubmitError: the cluster refused the object.
        """
        gang, config = spec.gang, self._config
        if gang is None or config.gang == "none":
            return None
        key = (spec.run_id, gang.name)
        # with the lock held, so that concurrent members wait for the object
        with self._lock:
            if key not in self._groups:
                # unique: schedulers remember names for longer than a run
                name = unique_name(gang.name)
                group = PodGroup(kind=config.gang, name=name, size=gang.size, queue=config.queue)
                if group.api is not None:
                    self._create(group, group.api, group.body(gang.timeout, owner))
                self._groups[key] = group
            return self._groups[key]

    def member_ended(self, spec: JobSpec) -> bool:
        """Count a member whose pod is gone; True for the last one, after which :meth:`drop` is due."""
        if spec.gang is None:
            return False
        with self._lock:
            self._ended[spec.run_id, spec.gang.name] += 1
            return self._ended[spec.run_id, spec.gang.name] == spec.gang.size

    def drop(self, run_id: str, name: str) -> None:
        """Delete the object of a gang, none of whose jobs is left."""
        with self._lock:
            group = self._groups.pop((run_id, name), None)
            self._ended.pop((run_id, name), None)
        if group is not None and group.api is not None:
            # otherwise it is deleted with the run's Lease
            with contextlib.suppress(BackendError):
                self._client.delete("podgroups", group.name, group=group.api)

    def _create(self, group: PodGroup, api: str, body: Mapping[str, Any]) -> None:
        what = f"create the group {group.name} for {group.kind}"
        try:
            self._client.create("podgroups", body, what, group=api)
        except SubmitError as error:
            cause = error.__cause__
            # no Status: there is no such path
            if isinstance(cause, ApiError) and cause.status == 404 and not cause.reason:
                msg = (
                    f"the cluster has no PodGroup of {api}: {group.kind} is not installed there; "
                    "have it installed, or unset FIBER_K8S_GANG, and members are created together"
                )
                raise SubmitError(msg) from error
            raise
