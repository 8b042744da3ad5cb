"""Sums of resources: allocatable on nodes, requested by pods; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["allocatable", "requested", "totals"]


def allocatable(node: Mapping[str, Any]) -> dict[str, float]:
    """Return a node's allocatable resources by name: CPUs, bytes, or devices."""
    return _numbers((node.get("status") or {}).get("allocatable"))


def totals(nodes: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the allocatable resources of all schedulable nodes together, by name."""
    sums: dict[str, float] = {}
    for node in nodes:
        if not (node.get("spec") or {}).get("unschedulable"):
            for name, amount in allocatable(node).items():
                sums[name] = sums.get(name, 0.0) + amount
    return sums


def requested(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return the effective requests of a pod, by resource.

    The sum over its containers and sidecars or, where that is more, the largest init container's;
    see "Resource sharing within containers" in Kubernetes' documentation.
    """
    spec = pod.get("spec") or {}
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total.update(_requested_by(container))
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            total.update(_requested_by(container))
    for container in spec.get("initContainers") or ():
        total |= Counter(_requested_by(container))
    total.update(_numbers(spec.get("overhead")))
    return dict(total)


def _requested_by(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    return _numbers({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _numbers(amounts: Mapping[str, str | float] | None) -> dict[str, Any]:
    # importing the client is slow
    from kubernetes.utils import parse_quantity

    return {name: float(parse_quantity(text)) for name, text in (amounts or {}).items()}
