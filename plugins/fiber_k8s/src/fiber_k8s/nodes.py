"""What nodes have to give, and what pods ask of them; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["allocatable", "requested", "totals"]


def allocatable(node: Mapping[str, Any]) -> dict[str, float]:
    """What a node has for pods, by resource: CPUs, bytes, pieces."""
    return _numbers((node.get("status") or {}).get("allocatable"))


def totals(nodes: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What all nodes together have that take pods, by resource."""
    sums: dict[str, float] = {}
    for node in nodes:
        if not (node.get("spec") or {}).get("unschedulable"):
            for name, amount in allocatable(node).items():
                sums[name] = sums.get(name, 0.0) + amount
    return sums


def requested(pod: Mapping[str, Any]) -> dict[str, float]:
    """What a pod asks of its node, by resource.

    That is the sum over its containers or, where that is more, what one of those needs that run
    before them; see "Resource sharing within containers" in Kubernetes' documentation.
    """
    spec = pod.get("spec") or {}
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total.update(_asked_by(container))
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            total.update(_asked_by(container))
    for container in spec.get("initContainers") or ():
        total |= Counter(_asked_by(container))
    total.update(_numbers(spec.get("overhead")))
    return dict(total)


def _asked_by(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    return _numbers({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _numbers(amounts: Mapping[str, str | float] | None) -> dict[str, Any]:
    # the client takes its time to be imported
    from kubernetes.utils import parse_quantity

    return {name: float(parse_quantity(text)) for name, text in (amounts or {}).items()}
