"""Schedulers: which node takes a pod, or why none does; groups; and nodes that are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

import attrs

from .admission import KUEUE_MANAGED
from .deletion import Deletion
from .kubelet import ENDED, Kubelet, tell
from .objects import NODES, PODS, Object, Resource, Store, Subscription, clone, now, of, quantity

__all__ = ["GROUP_SCHEDULERS", "Scheduler"]

_NAME = "default-scheduler"
_UNREACHABLE = "node.kubernetes.io/unreachable"


@attrs.frozen
class _Group:
    """A scheduler that starts all pods of a group or none."""

    #: kind of its groups
    resource: Resource
    #: where a pod says which group it is of: a part of its metadata, and a key
    mark: tuple[str, str]


def _kind(group: str, version: str) -> Resource:
    found = of("podgroups", group, version)
    assert found is not None
    return found


#: by the name that pods have as ``schedulerName``
GROUP_SCHEDULERS = {
    "volcano": _Group(
        _kind("scheduling.volcano.sh", "v1beta1"), ("annotations", "scheduling.k8s.io/group-name")
    ),
    "scheduler-plugins-scheduler": _Group(
        _kind("scheduling.x-k8s.io", "v1alpha1"), ("labels", "scheduling.x-k8s.io/pod-group")
    ),
}


@attrs.define
class Scheduler:
    """Binds pods, the oldest first."""

    store: Store
    deletion: Deletion
    kubelet: Kubelet
    #: whether it says which nodes could never take a pod, were they empty: as of 1.34
    is_frank: bool = True

    async def run(self, changes: Subscription) -> None:
        """Schedule whatever waits, after each change, until the subscription is closed."""
        async for change in changes:
            if change.resource is PODS and change.type == "MODIFIED":
                status = change.object["status"]
                if status.get("phase") not in ENDED and not _was_gated(change.before):
                    self._kueue(change.object)
                    continue
            self._kueue(change.object if change.resource is PODS else None)
            if change.type == "ADDED" and change.resource is PODS:
                self._schedule([change.object])
            else:
                self._schedule(self.store.list(PODS))

    def lose(self, name: str) -> None:
        """Take a node for lost: its processes go on, its pods are said to be not ready."""
        self.kubelet.lose(name)
        new = clone(self.store.need(NODES, None, name))
        new["status"]["conditions"][0] |= {"status": "Unknown", "reason": "NodeStatusUnknown"}
        taint = {"key": _UNREACHABLE, "effect": "NoSchedule", "timeAdded": now()}
        new["spec"].setdefault("taints", []).append(taint)
        self.store.update(NODES, new)
        for pod in self._pods_of(name):
            changed = clone(pod)
            for item in changed["status"].get("conditions") or ():
                if item["type"] == "Ready":
                    item["status"] = "False"
            self.store.update(PODS, changed)

    def regain(self, name: str) -> None:
        """A node is heard of again."""
        new = clone(self.store.need(NODES, None, name))
        new["status"]["conditions"][0] |= {"status": "True", "reason": "KubeletReady"}
        taints = new["spec"].pop("taints", [])
        new["spec"]["taints"] = [one for one in taints if one["key"] != _UNREACHABLE]
        self.store.update(NODES, new)
        self.kubelet.regain(name)

    def _schedule(self, pods: Iterable[Object]) -> None:
        groups: dict[tuple[str, str, str], list[Object]] = {}
        waiting = [pod for pod in pods if _waits(self.store.same(PODS, pod))]
        for pod in sorted(waiting, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
            scheduler = pod["spec"]["schedulerName"]
            if scheduler == _NAME:
                self._one(pod)
            elif scheduler in GROUP_SCHEDULERS:
                name = _group_of(pod, scheduler)
                groups.setdefault((scheduler, pod["metadata"]["namespace"], name), [])
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
        message = "no nodes available to schedule pods"
        if nodes:
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
        resource = GROUP_SCHEDULERS[scheduler].resource
        mine = [
            pod
            for pod in self.store.list(PODS, namespace)
            if pod["spec"]["schedulerName"] == scheduler and _group_of(pod, scheduler) == name
        ]
        waiting = [pod for pod in mine if _waits(pod)]
        group = self.store.get(resource, namespace, name)
        places = self._places(waiting)
        least = 0 if group is None else group["spec"]["minMember"]
        if group is None:
            why = f"PodGroup {namespace}/{name} not found"
        elif len(mine) < least:
            why = f"{len(mine)}/{least} pods of PodGroup {name} are there"
        elif places is None:
            why = f"not all of the {least} pods of PodGroup {name} have room"
        else:
            for pod, node in places:
                self._bind(pod, node)
            return
        for pod in waiting:
            self._refuse(pod, why)

    def _places(self, pods: list[Object]) -> list[tuple[Object, str]] | None:
        """A node for each pod; None where not all find one."""
        nodes = self.store.list(NODES)
        there = {
            node["metadata"]["name"]: self._pods_of(node["metadata"]["name"]) for node in nodes
        }
        found = []
        for pod in pods:
            for node in nodes:
                name = node["metadata"]["name"]
                if not _refusals(pod, node, there[name]):
                    there[name].append(pod)
                    found.append((pod, name))
                    break
            else:
                return None
        return found

    def _kueue(self, changed: Object | None) -> None:
        """Let Kueue's pods in by groups, and go when their whole group has ended."""
        labels = (changed or {"metadata": {}})["metadata"].get("labels") or {}
        if KUEUE_MANAGED not in labels:
            return
        name = labels["kueue.x-k8s.io/pod-group-name"]
        pods = [
            pod
            for pod in self.store.list(PODS)
            if (pod["metadata"].get("labels") or {}).get("kueue.x-k8s.io/pod-group-name") == name
        ]
        for pod in pods:
            notes = pod["metadata"]["annotations"]
            is_whole = len(pods) >= int(notes["kueue.x-k8s.io/pod-group-total-count"])
            if is_whole and pod["spec"].get("schedulingGates"):
                new = clone(pod)
                del new["spec"]["schedulingGates"]
                self.store.update(PODS, new)
            # a pod that was deleted stays while another one may take its place in the group
            is_final = notes.get("kueue.x-k8s.io/retriable-in-group") == "false"
            if is_final and all(map(_has_ended, pods)) and pod["metadata"].get("finalizers"):
                new = clone(
                    self.store.need(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
                )
                del new["metadata"]["finalizers"]
                self.deletion.finish(PODS, self.store.update(PODS, new))

    def _bind(self, pod: Object, node: str) -> None:
        new = clone(self.store.need(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
        new["spec"]["nodeName"] = node
        _set_scheduled(new, {"status": "True"})
        self.store.update(PODS, new)

    def _refuse(self, pod: Object, why: str) -> None:
        new = clone(self.store.need(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
        _set_scheduled(new, {"status": "False", "reason": "Unschedulable", "message": why})
        self.store.update(PODS, new)

    def _pods_of(self, node: str) -> list[Object]:
        return [
            pod
            for pod in self.store.list(PODS)
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ENDED
        ]


def _set_scheduled(pod: Object, fact: Object) -> None:
    condition = {"type": "PodScheduled", "lastProbeTime": None, "lastTransitionTime": now(), **fact}
    old = pod["status"].get("conditions") or []
    for item in old:
        if item["type"] == "PodScheduled" and item["status"] == fact["status"]:
            condition["lastTransitionTime"] = item["lastTransitionTime"]
    others = [item for item in old if item["type"] != "PodScheduled"]
    pod["status"]["conditions"] = [*others, condition]


def _waits(pod: Object | None) -> bool:
    return (
        pod is not None
        and not pod["spec"].get("nodeName")
        and not pod["spec"].get("schedulingGates")
        and "deletionTimestamp" not in pod["metadata"]
    )


def _was_gated(before: Object | None) -> bool:
    return before is not None and bool(before["spec"].get("schedulingGates"))


def _has_ended(pod: Object) -> bool:
    is_deleted = "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
    return is_deleted or pod["status"].get("phase") in ENDED


def _group_of(pod: Object, scheduler: str) -> str:
    part, key = GROUP_SCHEDULERS[scheduler].mark
    return str((pod["metadata"].get(part) or {}).get(key, ""))


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
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    if node["spec"].get("unschedulable"):
        return [("node(s) were unschedulable", False)]
    if any(not _tolerates(spec, taint) for taint in node["spec"].get("taints") or ()):
        return [("node(s) had untolerated taint(s)", False)]
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
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


def _tolerates(spec: Object, taint: Object) -> bool:
    return any(
        one.get("effect") in {None, "", taint["effect"]}
        and one.get("key") in {None, taint["key"]}
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in spec.get("tolerations") or ()
    )
