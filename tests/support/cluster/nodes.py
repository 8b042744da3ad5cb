"""Nodes that are lost and found: their conditions and taints, and the pods that taints end."""

from __future__ import annotations

import asyncio

import attrs

from .deletion import Deletion
from .happenings import Happenings
from .kinds import NODES, PODS
from .kubelet import Kubelet
from .placing import tolerates
from .store import Object, Store, Subscription, clone, now

__all__ = ["Nodes"]

_UNREACHABLE = "node.kubernetes.io/unreachable"
_UNKNOWN = "NodeStatusUnknown"


@attrs.define
class Nodes:
    """The node controller."""

    store: Store
    deletion: Deletion
    happenings: Happenings
    kubelet: Kubelet
    _timers: dict[str, asyncio.TimerHandle] = attrs.field(factory=dict)

    def lose(self, name: str) -> None:
        """A node is not heard of any more."""
        self.kubelet.lose(name)
        new = clone(self.store.need(NODES, None, name))
        _set(new, "Unknown", _UNKNOWN, "Kubelet stopped posting node status.")
        taints = new["spec"].setdefault("taints", [])
        for effect in ("NoSchedule", "NoExecute"):
            taints.append({"key": _UNREACHABLE, "effect": effect, "timeAdded": now()})
        self.store.update(NODES, new)
        for pod in self.store.list(PODS):
            if pod["spec"].get("nodeName") == name:
                self._not_ready(pod)

    def regain(self, name: str) -> None:
        """A node is heard of again."""
        new = clone(self.store.need(NODES, None, name))
        _set(new, "True", "KubeletReady", "kubelet is posting ready status")
        taints = [t for t in new["spec"].get("taints") or () if t["key"] != _UNREACHABLE]
        new["spec"].pop("taints", None)
        if taints:
            new["spec"]["taints"] = taints
        self.store.update(NODES, new)
        self.kubelet.regain(name)

    async def run(self, changes: Subscription) -> None:
        """End pods that do not tolerate their node's taints, until the subscription is closed."""
        async for change in changes:
            if change.resource is NODES:
                for pod in self.store.list(PODS):
                    if pod["spec"].get("nodeName") == change.object["metadata"]["name"]:
                        self._taints(pod)
            elif change.type == "DELETED":
                self._forget(change.object["metadata"]["uid"])
            else:
                self._taints(change.object)
        for timer in self._timers.values():
            timer.cancel()

    def _taints(self, pod: Object) -> None:
        uid, name = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        node = self.store.get(NODES, None, name) if name else None
        if node is None or "deletionTimestamp" in pod["metadata"]:
            self._forget(uid)
            return
        taints = [t for t in node["spec"].get("taints") or () if t["effect"] == "NoExecute"]
        if not taints:
            self._forget(uid)
            return
        left: list[float] = []
        for taint in taints:
            if not tolerates(pod["spec"], taint):
                left.append(0.0)
                continue
            left += [
                float(item["tolerationSeconds"])
                for item in pod["spec"]["tolerations"]
                if item.get("tolerationSeconds") is not None
                and tolerates({"tolerations": [item]}, taint)
            ]
        if left and uid not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[uid] = loop.call_later(min(left), self._end, pod)

    def _end(self, pod: Object) -> None:
        meta = pod["metadata"]
        self._forget(meta["uid"])
        there = self.store.get(PODS, meta["namespace"], meta["name"])
        if there is None or there["metadata"]["uid"] != meta["uid"]:
            return
        new = clone(there)
        new["status"].setdefault("conditions", []).append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": now(),
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
            }
        )
        there = self.store.update(PODS, new)
        text = f"Marking for deletion Pod {meta['namespace']}/{meta['name']}"
        self.happenings.tell(there, "TaintManagerEviction", text, by="taint-eviction-controller")
        self.deletion.delete(PODS, there, {})

    def _forget(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()

    def _not_ready(self, pod: Object) -> None:
        new = clone(pod)
        for item in new["status"].get("conditions") or ():
            if item["type"] == "Ready" and item["status"] == "True":
                item |= {"status": "False", "lastTransitionTime": now()}
                self.store.update(PODS, new)
                self.happenings.tell(
                    pod, "NodeNotReady", "Node is not ready", by="node-controller", warning=True
                )


def _set(node: Object, status: str, reason: str, message: str) -> None:
    for item in node["status"]["conditions"]:
        if item["type"] == "Ready":
            item |= {
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": now(),
            }
