"""The kubelets of all nodes: a worker for each pod that is bound, on one runtime."""

from __future__ import annotations

import asyncio
import traceback

import attrs

from .deletion import Deletion
from .happenings import Happenings
from .kinds import NODES, PODS
from .placing import lacking
from .podworker import Stop, Worker
from .runtime import Runtime
from .store import Object, Store, Subscription, clone, now
from .volumes import Volumes

__all__ = ["Kubelet"]

_WAITED_FOR = ("secrets", "configmaps", "persistentvolumeclaims")


@attrs.define
class Kubelet:
    """Leads the pods of every node."""

    store: Store
    deletion: Deletion
    happenings: Happenings
    runtime: Runtime
    volumes: Volumes
    #: what every container's environment has of services
    services: dict[str, str] = attrs.field(factory=dict)
    back_off: float = 10.0
    workers: dict[str, Worker] = attrs.field(factory=dict)
    #: what went wrong inside, for whoever closes the cluster
    failures: list[str] = attrs.field(factory=list)
    _tasks: dict[str, asyncio.Task[None]] = attrs.field(factory=dict)
    _lost: dict[str, asyncio.Event] = attrs.field(factory=dict)

    async def run(self, changes: Subscription) -> None:
        """Follow the pods, until the subscription is closed."""
        async for change in changes:
            if change.resource.plural in _WAITED_FOR:
                self.volumes.changed()
            elif change.resource is PODS:
                self._pod(change.type, change.object)

    async def close(self) -> None:
        """End all pods at once."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def worker(self, pod: Object) -> Worker | None:
        """Who leads a pod; one that has ended still answers for its logs."""
        return self.workers.get(pod["metadata"]["uid"])

    def host_ip(self, node: str) -> str:
        there = self.store.get(NODES, None, node)
        if there is None:
            return ""
        return next(
            (a["address"] for a in there["status"]["addresses"] if a["type"] == "InternalIP"), ""
        )

    def lost(self, node: str) -> bool:
        """Whether a node is cut off from the API."""
        return node in self._lost

    async def reachable(self, node: str) -> None:
        """Wait until a node can talk to the API."""
        while node in self._lost:
            await self._lost[node].wait()

    def lose(self, node: str) -> None:
        """Cut a node off: its processes go on, nobody hears of them."""
        self._lost.setdefault(node, asyncio.Event())

    def regain(self, node: str) -> None:
        """Join a node again: it tells what has happened, and hears what it missed."""
        news = self._lost.pop(node, None)
        if news is None:
            return
        news.set()
        there = {pod["metadata"]["uid"]: pod for pod in self.store.list(PODS)}
        for uid, worker in list(self.workers.items()):
            if worker.node != node:
                continue
            if uid not in there:
                worker.object_gone()
                continue
            if there[uid]["status"].get("phase") not in {"Succeeded", "Failed"}:
                worker.resume()
        for pod in there.values():
            if pod["spec"].get("nodeName") == node:
                self._pod("MODIFIED", pod)

    def finished(self, pod: Object) -> None:
        """A pod has ended."""

    def remove(self, pod: Object, options: Object) -> None:
        """Delete the object of a pod whose processes are gone."""
        self.deletion.delete(PODS, pod, options)

    def _pod(self, kind: str, pod: Object) -> None:
        meta = pod["metadata"]
        uid, node = meta["uid"], pod["spec"].get("nodeName")
        if not node or self.lost(node) or self.store.get(NODES, None, node) is None:
            return
        worker = self.workers.get(uid)
        there = self.store.get(PODS, meta["namespace"], meta["name"])
        if kind != "DELETED" and (there is None or there["metadata"]["uid"] != uid):
            # what became of it comes next
            return
        if kind == "DELETED":
            if worker is not None:
                worker.object_gone()
                if uid not in self._tasks:
                    del self.workers[uid]
                    self._tasks[uid] = asyncio.ensure_future(self._forget(uid, pod))
            return
        if worker is None:
            if pod["status"].get("phase") in {"Succeeded", "Failed"}:
                return
            if self._rejects(pod, node):
                return
            worker = self.workers[uid] = Worker(self, pod)
            self._tasks[uid] = asyncio.ensure_future(self._lead(uid, worker))
        if "deletionTimestamp" in meta:
            if uid in self._tasks:
                worker.stop(Stop(meta.get("deletionGracePeriodSeconds", 30)))
            else:
                self.remove(pod, {"gracePeriodSeconds": 0})

    def _rejects(self, pod: Object, name: str) -> bool:
        """Fail a pod that the node has no room for; a scheduler would not have sent it."""
        node = self.store.need(NODES, None, name)
        there = [
            other
            for other in self.store.list(PODS)
            if other["spec"].get("nodeName") == name
            and other["metadata"]["uid"] in self.workers
            and other["status"].get("phase") not in {"Succeeded", "Failed"}
        ]
        lacks = lacking(pod, node, there)
        if lacks is None:
            return False
        kind, text = lacks
        self.happenings.tell(pod, f"OutOf{kind}", text, node=name, warning=True)
        new = clone(pod)
        new["status"] = {
            "observedGeneration": pod["metadata"].get("generation", 1),
            "phase": "Failed",
            "message": f"Pod was rejected: {text}",
            "reason": f"OutOf{kind}",
            "startTime": now(),
            "qosClass": pod["status"].get("qosClass", "BestEffort"),
        }
        self.store.update(PODS, new)
        return True

    async def _forget(self, uid: str, pod: Object) -> None:
        await self.runtime.discard(pod)
        del self._tasks[uid]

    async def _lead(self, uid: str, worker: Worker) -> None:
        try:
            await worker.live()
        except asyncio.CancelledError:
            raise
        except Exception:
            self.failures.append(traceback.format_exc())
        finally:
            del self._tasks[uid]
            meta = worker.pod["metadata"]
            there = self.store.get(PODS, meta["namespace"], meta["name"])
            if there is None or there["metadata"]["uid"] != uid:
                self.workers.pop(uid, None)
