"""Schedulers: which node takes a pod, or why none does; and groups of pods."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

import attrs

from .kubelet import ENDED, tell
from .objects import NODES, PODS, Object, Resource, Store, Subscription, clone, now, of, quantity


@attrs.frozen
class _Group:
    """A scheduler that starts all pods of a group or none."""

    #: kind of its groups
    resource: Resource
    #: where a pod says which group it is of: a part of its metadata, and a key
    part: str
    key: str


def _kind(group: str, version: str) -> Resource:
    found = of("podgroups", group, version)
    assert found is not None
    return found


#: by the name that pods have as ``schedulerName``
GROUP_SCHEDULERS = {
    "volcano": _Group(
        _kind("scheduling.volcano.sh", "v1beta1"), "annotations", "scheduling.k8s.io/group-name"
    ),
    "scheduler-plugins-scheduler": _Group(
        _kind("scheduling.x-k8s.io", "v1alpha1"), "labels", "scheduling.x-k8s.io/pod-group"
    ),
}


@attrs.define
class Scheduler:
    """Binds pods, the oldest first."""

    store: Store
    #: whether it says which nodes could never take a pod, were they empty: as of 1.34
    is_frank: bool = True

    async def run(self, changes: Subscription) -> None:
        """Schedule whatever waits, after each change, until the subscription is closed."""
        async for change in changes:
            if change.resource is PODS and change.type == "MODIFIED":
                if change.object["status"].get("phase") in ENDED:
                    self._schedule(self.store.list(PODS))
            elif change.resource is PODS and change.type == "ADDED":
                self._schedule([change.object])
            else:
                self._schedule(self.store.list(PODS))

    def _schedule(self, pods: Iterable[Object]) -> None:
        groups: dict[tuple[str, str, str], None] = {}
        waiting = [pod for pod in pods if _waits(self.store.same(PODS, pod))]
        for pod in sorted(waiting, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
            scheduler = pod["spec"]["schedulerName"]
            if scheduler in GROUP_SCHEDULERS:
                groups[scheduler, pod["metadata"]["namespace"], _group_of(pod, scheduler)] = None
            else:
                self._one(pod)
        for scheduler, namespace, name in groups:
            self._group(scheduler, namespace, name)

    def _one(self, pod: Object) -> None:
        nodes = self.store.list(NODES)
        reasons: Counter[str] = Counter()
        fits: list[tuple[int, str]] = []
        hopeless = 0
        for node in nodes:
            name = node["metadata"]["name"]
            there = self._pods_of(name)
            found = _refusals(pod, node, there)
            reasons.update(why for why, _ in found)
            # what is full now could take it if others went
            hopeless += any(not is_passing for _, is_passing in found)
            if not found:
                fits.append((len(there), name))
        if fits:
            self._bind(pod, min(fits)[1])
            return
        total = len(nodes)
        told = ", ".join(sorted(f"{count} {why}" for why, count in reasons.items()))
        message = (
            f"0/{total} nodes are available: {told}. no new claims to deallocate, preemption: "
            f"0/{total} nodes are available: {self._preemption(total, hopeless)}."
        )
        tell(self.store, pod, "FailedScheduling", message)
        self._refuse(pod, message)

    def _preemption(self, total: int, hopeless: int) -> str:
        hopeless = hopeless if self.is_frank else 0
        told = [f"{hopeless} Preemption is not helpful for scheduling"] if hopeless else []
        if total > hopeless:
            victims = f"{total - hopeless} No preemption victims found for incoming pod"
            told.insert(0, victims)
        return ", ".join(told)

    def _group(self, scheduler: str, namespace: str, name: str) -> None:
        """Bind all pods of a group, or none."""
        group = self.store.get(GROUP_SCHEDULERS[scheduler].resource, namespace, name)
        mine = [
            pod
            for pod in self.store.list(PODS, namespace)
            if pod["spec"]["schedulerName"] == scheduler and _group_of(pod, scheduler) == name
        ]
        waiting = [pod for pod in mine if _waits(pod)]
        places = self._places(waiting)
        least = 0 if group is None else group["spec"]["minMember"]
        if group is not None and len(mine) >= least and places is not None:
            for pod, node in zip(waiting, places, strict=True):
                self._bind(pod, node)
            return
        for pod in waiting:
            self._refuse(pod, f"not all of the {least} pods of PodGroup {name} have room")

    def _places(self, pods: list[Object]) -> list[str] | None:
        """A node for each pod; None where not all find one."""
        nodes = {node["metadata"]["name"]: node for node in self.store.list(NODES)}
        there = {name: self._pods_of(name) for name in nodes}
        found = []
        for pod in pods:
            fits = (name for name in nodes if not _refusals(pod, nodes[name], there[name]))
            name = next(fits, None)
            if name is None:
                return None
            there[name].append(pod)
            found.append(name)
        return found

    def _bind(self, pod: Object, node: str) -> None:
        self._update(pod, {"status": "True"}, nodeName=node)

    def _refuse(self, pod: Object, why: str) -> None:
        self._update(pod, {"status": "False", "reason": "Unschedulable", "message": why})

    def _update(self, pod: Object, fact: Object, **spec: str) -> None:
        new = clone(self.store.same(PODS, pod))
        new["spec"] |= spec
        old = new["status"].get("conditions") or []
        condition = {"type": "PodScheduled", "lastTransitionTime": now(), **fact}
        for item in old:
            if item["type"] == "PodScheduled" and item["status"] == fact["status"]:
                condition["lastTransitionTime"] = item["lastTransitionTime"]
        others = [item for item in old if item["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, condition]
        self.store.update(PODS, new)

    def _pods_of(self, node: str) -> list[Object]:
        return [
            pod
            for pod in self.store.list(PODS)
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ENDED
        ]


def _waits(pod: Object | None) -> bool:
    return (
        pod is not None
        and not pod["spec"].get("nodeName")
        and "deletionTimestamp" not in pod["metadata"]
    )


def _group_of(pod: Object, scheduler: str) -> str:
    known = GROUP_SCHEDULERS[scheduler]
    return str((pod["metadata"].get(known.part) or {}).get(known.key, ""))


def _requests(pods: Sequence[Object]) -> Counter[str]:
    total: Counter[str] = Counter()
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for name, value in (container["resources"].get("requests") or {}).items():
                total[name] += quantity(value)  # type: ignore[assignment]
    return total


def _refusals(pod: Object, node: Object, there: Sequence[Object]) -> list[tuple[str, bool]]:
    """Why a node cannot take a pod, and whether it could if others went; empty where it can.

    Args:
        pod: that waits.
        node: as it is.
        there: the pods that it has already.
    """
    if node["spec"].get("unschedulable"):
        return [("node(s) were unschedulable", False)]
    wanted = pod["spec"].get("nodeSelector") or {}
    if not wanted.items() <= node["metadata"]["labels"].items():
        return [("node(s) didn't match Pod's node affinity/selector", False)]
    holds = {key: quantity(value) for key, value in node["status"]["allocatable"].items()}
    used = _requests(there)
    found = []
    if len(there) + 1 > holds["pods"]:
        found.append(("Too many pods", True))
    for name, value in sorted(_requests([pod]).items()):
        whole = holds.get(name, Fraction(0))
        if value > whole - used[name]:
            found.append((f"Insufficient {name}", value <= whole))
    return found
