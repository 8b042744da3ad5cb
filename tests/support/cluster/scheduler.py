"""The scheduler: gives each pod a node that has room for it, or says why none has."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import attrs

from .deletion import Deletion
from .happenings import Happenings
from .kinds import NODES, PODS
from .placing import refusals
from .store import Object, Store, Subscription, clone, now

__all__ = ["Scheduler", "bind", "tell_waiting"]

_NAME = "default-scheduler"
_ENDED = ("Succeeded", "Failed")


@attrs.define
class Scheduler:
    """Binds pods, oldest and most important first."""

    store: Store
    deletion: Deletion
    happenings: Happenings
    #: whether pods are given nodes at all
    working: bool = True
    #: whether it says which nodes could never take a pod, were they empty: as of 1.34
    is_frank: bool = True

    async def run(self, changes: Subscription) -> None:
        """Schedule whatever waits, after each change, until the subscription is closed."""
        async for change in changes:
            kind = change.type
            if change.resource is PODS:
                ended = change.object["status"].get("phase") in _ENDED
                is_news = kind == "ADDED" or _was_gated(change.before, change.object)
                waits = is_news and not change.object["spec"].get("nodeName")
                if not (waits or kind == "DELETED" or ended):
                    continue
                if waits:
                    self._one(change.object["metadata"])
                    continue
            elif change.before is not None and not _differs(change.object, change.before):
                continue
            self.all()

    def all(self) -> None:
        """Try every pod that waits."""
        waiting = [
            pod
            for pod in self.store.list(PODS)
            if not pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending"
        ]
        waiting.sort(
            key=lambda pod: (
                -pod["spec"].get("priority", 0),
                pod["metadata"]["creationTimestamp"],
                int(pod["metadata"]["resourceVersion"]),
            )
        )
        for pod in waiting:
            self._one(pod["metadata"])

    def _one(self, meta: Object) -> None:
        pod = self.store.get(PODS, meta["namespace"], meta["name"])
        if pod is None or not self.working or "deletionTimestamp" in pod["metadata"]:
            return
        if pod["spec"].get("nodeName"):
            return
        if pod["spec"].get("schedulingGates"):
            why = "Scheduling is blocked due to non-empty scheduling gates"
            tell_waiting(self.store, pod, "SchedulingGated", why, None)
            return
        if pod["spec"].get("schedulerName", _NAME) != _NAME:
            return
        nodes = self.store.list(NODES)
        reasons: Counter[str] = Counter()
        fits: list[tuple[Fraction, str]] = []
        hopeless = 0
        for node in nodes:
            mine = self._pods_of(node)
            why = refusals(pod, node, mine)
            if why:
                reasons.update(item.why for item in why)
                hopeless += any(not item.by_preemption for item in why)
            else:
                fits.append((Fraction(len(mine)), node["metadata"]["name"]))
        if fits:
            self._bind(pod, min(fits)[1])
            return
        self._unschedulable(pod, nodes, reasons, hopeless)

    def _bind(self, pod: Object, node: str) -> None:
        bind(self.store, pod, node)
        meta = pod["metadata"]
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        self.happenings.tell(pod, "Scheduled", message, by=_NAME)

    def _unschedulable(
        self, pod: Object, nodes: list[Object], reasons: Counter[str], hopeless: int
    ) -> None:
        total = len(nodes)
        told = ", ".join(sorted(f"{count} {why}" for why, count in reasons.items()))
        if not total:
            message, found = "no nodes available to schedule pods", None
        else:
            message = f"0/{total} nodes are available: {told}."
            why, found = self._preemption(pod, nodes, hopeless)
            if why:
                message += f" no new claims to deallocate, preemption: {why}"
        self.happenings.tell(pod, "FailedScheduling", message, by=_NAME, warning=True)
        node = found[0] if found is not None else None
        pod = tell_waiting(self.store, pod, "Unschedulable", message, node)
        for victim in found[1] if found is not None else ():
            if "deletionTimestamp" not in victim["metadata"]:
                assert found is not None
                preempt(self.store, self.deletion, self.happenings, victim, found[0], pod)

    def _preemption(
        self, pod: Object, nodes: list[Object], hopeless: int
    ) -> tuple[str, tuple[str, list[Object]] | None]:
        """The node and the pods whose end makes room, or why there are none."""
        if pod["spec"].get("preemptionPolicy") == "Never":
            return "not eligible due to preemptionPolicy=Never.", None
        total, nominated = len(nodes), pod["status"].get("nominatedNodeName")
        if nominated and any(
            "deletionTimestamp" in other["metadata"]
            for other in self.store.list(PODS)
            if other["spec"].get("nodeName") == nominated
        ):
            return "not eligible due to a terminating pod on the nominated node.", None
        found = self._victims(pod, nodes)
        if found is not None:
            return "", found
        hopeless = hopeless if self.is_frank else 0
        useless = [f"{hopeless} Preemption is not helpful for scheduling"] if hopeless else []
        rest = total - hopeless
        if rest:
            useless.insert(0, f"{rest} No preemption victims found for incoming pod")
        return f"0/{total} nodes are available: {', '.join(useless)}.", None

    def _victims(self, pod: Object, nodes: list[Object]) -> tuple[str, list[Object]] | None:
        """The fewest less important pods whose end makes room, and their node."""
        best: tuple[str, list[Object]] | None = None
        for node in nodes:
            mine = self._pods_of(node)
            lower = sorted(
                (p for p in mine if p["spec"].get("priority", 0) < pod["spec"].get("priority", 0)),
                # of two that are as important, the younger one goes
                key=lambda p: (p["spec"].get("priority", 0), -_age(p)),
            )
            chosen: list[Object] = []
            while (why := refusals(pod, node, [p for p in mine if p not in chosen])) and lower:
                if any(not item.by_preemption for item in why):
                    break
                chosen.append(lower.pop(0))
            if not why and (best is None or len(chosen) < len(best[1])):
                best = (node["metadata"]["name"], chosen)
        return best

    def _pods_of(self, node: Object) -> list[Object]:
        return [
            pod
            for pod in self.store.list(PODS)
            if pod["spec"].get("nodeName") == node["metadata"]["name"]
            and pod["status"].get("phase") not in _ENDED
        ]


def _age(pod: Object) -> int:
    return int(pod["metadata"]["resourceVersion"])


def tell_waiting(
    store: Store, pod: Object, reason: str, message: str, nominated: str | None
) -> Object:
    """Write into a pod why it has no node."""
    new = clone(store.need(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": now(),
        "reason": reason,
        "message": message,
    }
    old = new["status"].get("conditions") or []
    for item in old:
        if item["type"] == "PodScheduled":
            condition["lastTransitionTime"] = item["lastTransitionTime"]
    others = [item for item in old if item["type"] != "PodScheduled"]
    new["status"]["conditions"] = [*others, condition]
    if nominated is not None:
        new["status"]["nominatedNodeName"] = nominated
    return store.update(PODS, new)


def bind(store: Store, pod: Object, node: str) -> None:
    """Give a pod its node."""
    new = clone(store.need(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
    new["spec"]["nodeName"] = node
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now(),
    }
    others = [c for c in new["status"].get("conditions") or () if c["type"] != "PodScheduled"]
    new["status"]["conditions"] = [*others, condition]
    new["status"].pop("nominatedNodeName", None)
    store.update(PODS, new)


def preempt(
    store: Store, deletion: Deletion, happenings: Happenings, victim: Object, node: str, pod: Object
) -> None:
    """End a pod for a more important one."""
    meta = victim["metadata"]
    new = clone(store.need(PODS, meta["namespace"], meta["name"]))
    new["status"].setdefault("conditions", []).append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": now(),
            "reason": "PreemptionByScheduler",
            "message": f"{_NAME}: preempting to accommodate a higher priority pod",
        }
    )
    victim = store.update(PODS, new)
    message = f"Preempted by pod {pod['metadata']['uid']} on node {node}"
    happenings.tell(victim, "Preempted", message, by=_NAME)
    deletion.delete(PODS, victim, {})


def _differs(new: Object, old: Object) -> bool:
    return bool(
        new["spec"] != old["spec"]
        or new["status"].get("allocatable") != old["status"].get("allocatable")
        or new["metadata"].get("labels") != old["metadata"].get("labels")
    )


def _was_gated(before: Object | None, after: Object) -> bool:
    """True where nothing holds a pod back any more."""
    gates = before is not None and before["spec"].get("schedulingGates")
    return bool(gates) and not after["spec"].get("schedulingGates")
