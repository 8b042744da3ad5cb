"""Pod groups of gang schedulers: labels on member pods, and the PodGroup object; pure.

By the documentation of Kueue ("plain pods in groups"), Volcano, and scheduler-plugins' coscheduling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["PodGroup"]


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

    def group(self, timeout: float, owner: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the body of the PodGroup object; None for Kueue, which has none."""
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
        """True where the scheduler needs a PodGroup object."""
        return self.kind != "kueue"

    @property
    def api(self) -> str:
        """API group and version of the PodGroup object."""
        if self.kind == "volcano":
            return "scheduling.volcano.sh/v1beta1"
        return "scheduling.x-k8s.io/v1alpha1"
