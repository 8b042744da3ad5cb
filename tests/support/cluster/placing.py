"""Whether a node can take a pod: resources, selectors, affinity and taints. No time, no sockets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import attrs

from .quantities import parse
from .store import Object

__all__ = ["Refusal", "demands", "lacking", "refusals", "tolerates"]


@attrs.frozen
class Refusal:
    """Why a node cannot take a pod, in the scheduler's words."""

    why: str
    #: whether the end of other pods could help
    by_preemption: bool = False


def demands(pod: Object) -> dict[str, Fraction]:
    """What a pod requests in all."""
    spec = pod["spec"]
    total = _sum(spec.get("containers") or ())
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        own = _sum([container])
        if container.get("restartPolicy") == "Always":
            sidecars = _add(sidecars, own)
        else:
            for name, value in _add(sidecars, own).items():
                peak[name] = max(peak.get(name, Fraction(0)), value)
    total = _add(total, sidecars)
    total = {
        name: max(total.get(name, Fraction(0)), peak.get(name, Fraction(0)))
        for name in {*total, *peak}
    }
    return _add(total, {k: parse(v) for k, v in (spec.get("overhead") or {}).items()})


def refusals(pod: Object, node: Object, there: Sequence[Object]) -> list[Refusal]:
    """Why a node cannot take a pod; empty where it can.

    Args:
        pod: that waits.
        node: as it is.
        there: the pods that it has already.
    """
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    if node["spec"].get("unschedulable") and not tolerates(
        spec, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ):
        return [Refusal("node(s) were unschedulable")]
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in {"NoSchedule", "NoExecute"} and not tolerates(spec, taint):
            return [Refusal("node(s) had untolerated taint(s)")]
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()) or not _affine(
        spec, labels, node["metadata"]["name"]
    ):
        return [Refusal("node(s) didn't match Pod's node affinity/selector")]
    if not _ports(pod).isdisjoint(port for other in there for port in _ports(other)):
        why = "node(s) didn't have free ports for the requested pod ports"
        return [Refusal(why, by_preemption=True)]
    if any(_repels(pod, other) or _repels(other, pod) for other in there):
        why = "node(s) didn't match pod anti-affinity rules"
        return [Refusal(why, by_preemption=True)]
    free = {k: parse(v) for k, v in (node["status"].get("allocatable") or {}).items()}
    all_there = dict(free)
    for other in there:
        for name, value in demands(other).items():
            free[name] = free.get(name, Fraction(0)) - value
    found = []
    if len(there) + 1 > all_there.get("pods", 110):
        found.append(Refusal("Too many pods", by_preemption=True))
    for name, value in sorted(demands(pod).items()):
        if value > 0 and value > free.get(name, Fraction(0)):
            enough = value <= all_there.get(name, Fraction(0))
            found.append(Refusal(f"Insufficient {name}", by_preemption=enough))
    return found


def lacking(pod: Object, node: Object, there: Sequence[Object]) -> tuple[str, str] | None:
    """What a node lacks for a pod that was sent to it, and the kubelet's words for it."""
    holds = {k: parse(v) for k, v in (node["status"].get("allocatable") or {}).items()}
    for name, value in sorted(demands(pod).items()):
        used = sum((demands(other).get(name, Fraction(0)) for other in there), Fraction(0))
        capacity = holds.get(name, Fraction(0))
        if value > 0 and used + value > capacity:
            scale = 1000 if name == "cpu" else 1
            numbers = [int(number * scale) for number in (value, used, capacity)]
            told = "requested: {}, used: {}, capacity: {}".format(*numbers)
            return name, f"Node didn't have enough resource: {name}, {told}"
    return None


def tolerates(spec: Object, taint: Object) -> bool:
    """Whether a pod tolerates a taint."""
    for item in spec.get("tolerations") or ():
        if item.get("effect") not in {None, "", taint["effect"]}:
            continue
        key = item.get("key")
        if not key and item.get("operator") == "Exists":
            return True
        if key != taint["key"]:
            continue
        if item.get("operator", "Equal") == "Exists":
            return True
        if (item.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def _ports(pod: Object) -> set[tuple[int, str]]:
    return {
        (port["hostPort"], port.get("protocol", "TCP"))
        for container in pod["spec"].get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def _repels(pod: Object, other: Object) -> bool:
    """Whether a pod will not be on one node with another; each topology is that of nodes."""
    rules = ((pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    labels = other["metadata"].get("labels") or {}
    same = pod["metadata"]["namespace"] == other["metadata"]["namespace"]
    for rule in rules or ():
        selector = rule.get("labelSelector") or {}
        wanted = selector.get("matchLabels") or {}
        matches = all(labels.get(key) == value for key, value in wanted.items()) and all(
            _expression(item, labels) for item in selector.get("matchExpressions") or ()
        )
        if matches and (same or other["metadata"]["namespace"] in (rule.get("namespaces") or ())):
            return True
    return False


def _sum(containers: Sequence[Object]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for container in containers:
        requests = (container.get("resources") or {}).get("requests") or {}
        total = _add(total, {name: parse(value) for name, value in requests.items()})
    return total


def _add(left: dict[str, Fraction], right: dict[str, Fraction]) -> dict[str, Fraction]:
    return {
        name: left.get(name, Fraction(0)) + right.get(name, Fraction(0)) for name in {*left, *right}
    }


def _affine(spec: Object, labels: dict[str, str], name: str) -> bool:
    needed = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not needed:
        return True
    return any(
        all(_expression(item, labels) for item in term.get("matchExpressions") or ())
        and all(
            _expression(item, {"metadata.name": name}) for item in term.get("matchFields") or ()
        )
        for term in needed["nodeSelectorTerms"]
    )


def _expression(item: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(item["key"]), item.get("values") or ()
    operator = item["operator"]
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if value is None or not values:
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
