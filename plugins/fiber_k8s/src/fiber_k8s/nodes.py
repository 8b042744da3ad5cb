"""What nodes have to give, and what pods ask of them; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["allocatable", "requested"]


def allocatable(node: Mapping[str, Any]) -> dict[str, float]:
    """What a node has for pods, by resource: CPUs, bytes, pieces."""
    found = (node.get("status") or {}).get("allocatable") or {}
    return {name: _number(text) for name, text in found.items()}


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
    total.update({name: _number(text) for name, text in (spec.get("overhead") or {}).items()})
    return dict(total)


def _asked_by(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    asked: Iterable[tuple[str, Any]] = {
        **(resources.get("limits") or {}),
        **(resources.get("requests") or {}),
    }.items()
    return {name: _number(text) for name, text in asked}


def _number(text: str | float) -> float:
    # the client takes its time to be imported
    from kubernetes.utils import parse_quantity

    return float(parse_quantity(text))
