"""Marks on pods that start together, for the schedulers that see to it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Gang"]


@attrs.frozen(kw_only=True)
class Gang:
    """Pods that start together or not at all."""

    #: which scheduler is told
    kind: str
    #: of the group, unique in the namespace
    name: str
    #: how many they are
    size: int
    #: queue of the scheduler
    queue: str | None = None

    def mark(self, pod: dict[str, Any], scheduler: str | None = None) -> None:
        """Write into a pod what its scheduler looks for.

        Args:
            pod: the body.
            scheduler: its name, where it is not the usual one.
        """
        labels = pod["metadata"].setdefault("labels", {})
        annotations = pod["metadata"].setdefault("annotations", {})
        if self.kind == "kueue":
            labels["kueue.x-k8s.io/pod-group-name"] = self.name
            annotations["kueue.x-k8s.io/pod-group-total-count"] = str(self.size)
            # a member that is lost is never replaced by one of the same group; without this word
            # its finalizer would keep it for the replacement, and the queue's quota with it
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

    def group(self, timeout: float, owner: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The object that tells the scheduler of the group, where it needs one.

        Args:
            timeout: seconds within which all are to start.
            owner: what it goes with.
        """
        metadata: dict[str, Any] = {"name": self.name}
        if owner is not None:
            metadata["ownerReferences"] = [dict(owner)]
        spec: dict[str, Any] = {"minMember": self.size}
        if self.kind == "volcano":
            if self.queue is not None:
                spec["queue"] = self.queue
        elif self.kind == "scheduler-plugins":
            spec["scheduleTimeoutSeconds"] = max(1, round(timeout))
        else:
            return None
        return {
            "apiVersion": self.api,
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": spec,
        }

    @property
    def has_object(self) -> bool:
        """True where the scheduler is told by an object."""
        return self.kind != "kueue"

    @property
    def api(self) -> str:
        """Group and version of that object."""
        if self.kind == "volcano":
            return "scheduling.volcano.sh/v1beta1"
        return "scheduling.x-k8s.io/v1alpha1"
