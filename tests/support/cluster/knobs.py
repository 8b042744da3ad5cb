"""What tests do to a cluster: nodes come and go, pods die, the API refuses, watches are cut."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from .assembly import Parts
from .faults import Refusal
from .gangs import install
from .kinds import NODES, PODS
from .podworker import Stop
from .quantities import parse
from .requests import Call
from .runtime import Ended
from .scheduler import preempt
from .store import Object, clone, now

__all__ = ["Knobs"]

_CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "50Gi"}
_GPU = "nvidia.com/gpu"


class Knobs:
    """The part of a cluster that is for faults."""

    _parts: Parts
    call: Callable[[Callable[[], Any]], Any]
    wait: Callable[[Any], Any]

    # the API

    @contextlib.contextmanager
    def outage(self, *, restarts: bool = True) -> Iterator[None]:
        """The API server is away: connections are cut, new ones refused; the pods go on.

        Args:
            restarts: whether it forgets, as a server that is started again does: watches from
                versions of before get 410. Else it was only out of reach.
        """
        self.stop_api()
        try:
            yield
        finally:
            self.start_api(restarts=restarts)

    def stop_api(self) -> None:
        """Begin an outage."""
        self.wait(self._parts.server.stop())

    def start_api(self, *, restarts: bool = True) -> None:
        """End an outage; see ``outage``."""
        if restarts:
            self.expire()
        self.wait(self._parts.server.restart())

    def cut_watches(self) -> int:
        """Cut the connection of each watch; the answer counts them."""
        return int(self.call(self._parts.watches.cut))

    def end_watches(self) -> int:
        """End each watch regularly, as the server does after its timeout; the answer counts them."""
        return int(self.call(self._parts.watches.end))

    @contextlib.contextmanager
    def hasty_watches(self) -> Iterator[None]:
        """In this block each watch ends regularly as soon as it has begun, as some proxies have it."""
        self._parts.watches.hasty = True
        try:
            self.end_watches()
            yield
        finally:
            self._parts.watches.hasty = False

    def expire(self, version: str | int | None = None) -> None:
        """Forget the history up to a resourceVersion, or all: watches from before get 410."""
        told = None if version is None else int(version)
        self.call(lambda: self._parts.store.compact(told))

    def refuse(
        self,
        code: int,
        *,
        retry_after: int | None = None,
        matching: Callable[[Call], bool] | None = None,
        times: int | None = None,
    ) -> Refusal:
        """Refuse requests, until ``stop()`` or the end of a block, or a number of times."""
        refusal = Refusal(code, retry_after, matching or (lambda _: True), times)
        self.call(lambda: self._parts.faults.refusals.append(refusal))
        return refusal

    def expire_tokens(self) -> None:
        """Refuse all service account tokens that were made before now."""
        self._parts.authority.not_before = time.time()

    def rotate_tokens(self) -> None:
        """Refuse tokens from before now, and give running pods new ones in their files."""
        self.expire_tokens()
        kubelet = self._parts.kubelet

        def work() -> None:
            for worker in kubelet.workers.values():
                if worker.boxes[0].running:
                    kubelet.volumes.refresh(worker.pod)

        self.call(work)

    # pods

    def delete_pod(
        self, name: str, namespace: str = "default", *, grace: int | None = None
    ) -> None:
        """Delete a pod as somebody else would."""
        options: Object = {} if grace is None else {"gracePeriodSeconds": grace}
        deletion = self._parts.deletion
        self.call(lambda: deletion.delete(PODS, self._pod(name, namespace), options))

    def evict(self, name: str, namespace: str = "default", *, grace: int | None = None) -> None:
        """Evict a pod through the API, as a drain does."""
        options: Object = {} if grace is None else {"gracePeriodSeconds": grace}
        self.call(lambda: self._parts.deletion.evict(self._pod(name, namespace), options))

    def kubelet_evict(
        self,
        name: str,
        namespace: str = "default",
        *,
        grace: float = 0,
        why: str | None = None,
        pressure: bool = True,
    ) -> None:
        """Evict a pod as its node does when something runs out; its object stays, failed.

        Args:
            name: of the pod.
            namespace: of the pod.
            grace: seconds that its processes have.
            why: the message.
            pressure: whether it is the node that runs out; else the pod has used more than its limits.
        """
        text = why or "The node was low on resource: memory. "
        self._stop(name, namespace, Stop(grace, "Evicted", text, disruption=pressure))

    def preempt(self, name: str, namespace: str = "default") -> None:
        """End a pod as the scheduler does for a more important one."""
        parts = self._parts

        def work() -> None:
            victim = self._pod(name, namespace)
            node = victim["spec"].get("nodeName", "")
            preempt(parts.store, parts.deletion, parts.happenings, victim, node, victim)

        self.call(work)

    def oom(self, name: str, namespace: str = "default") -> None:
        """A hollow pod's memory was not enough."""
        self.end(name, namespace, code=137, oom=True)

    def end(
        self,
        name: str,
        namespace: str = "default",
        *,
        code: int = 0,
        oom: bool = False,
        message: str = "",
    ) -> None:
        """A hollow pod's process ends."""
        self.call(lambda: self._handle(name, namespace).end(Ended(code, oom, message)))

    def say(self, name: str, text: str, namespace: str = "default") -> None:
        """A hollow pod writes to its log."""
        self.call(lambda: self._handle(name, namespace).log.write(text.encode()))

    # nodes

    def add_node(
        self,
        name: str,
        capacity: dict[str, str] | None = None,
        *,
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        """A node joins."""
        holds = _CAPACITY | (capacity or {})
        # no machine's memory is a round number: the firmware has its part
        holds["memory"] = f"{int(parse(holds['memory'])) // 1024 - 4}Ki"
        thing: Object = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **(labels or {}),
                },
            },
            "spec": {"taints": taints} if taints else {},
            "status": {
                "capacity": dict(holds),
                "allocatable": dict(holds),
                "conditions": [
                    _condition("True", "KubeletReady", "kubelet is posting ready status")
                ],
                "addresses": [
                    {"type": "InternalIP", "address": address},
                    {"type": "Hostname", "address": name},
                ],
                "nodeInfo": {
                    "kubeletVersion": "v1.36.2",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                },
            },
        }
        self.call(lambda: self._parts.store.create(NODES, thing))

    def add_gpus(self, count: int, node: str | None = None) -> None:
        """A node, or each node, gets GPUs."""

        def work(there: Object) -> None:
            for part in ("capacity", "allocatable"):
                there["status"][part][_GPU] = str(count)

        self._nodes(node, work)

    def install(self, name: str) -> None:
        """Install what schedules groups: ``scheduler-plugins``, ``volcano`` or ``kueue``."""
        self.call(lambda: install(self._parts, name))

    def cordon(self, node: str) -> None:
        """A node takes no new pods."""

        def work(there: Object) -> None:
            there["spec"]["unschedulable"] = True
            taint = {
                "key": "node.kubernetes.io/unschedulable",
                "effect": "NoSchedule",
                "timeAdded": now(),
            }
            there["spec"].setdefault("taints", []).append(taint)

        self._nodes(node, work)

    def uncordon(self, node: str) -> None:
        """A node takes pods again; its taints are gone."""
        self._nodes(node, lambda there: there.update(spec={}))

    def taint(self, node: str, key: str, value: str, effect: str) -> None:
        """A node gets a taint; NoExecute ends what does not tolerate it."""

        def work(there: Object) -> None:
            there["spec"].setdefault("taints", []).append(
                {"key": key, "value": value, "effect": effect}
            )

        self._nodes(node, work)

    def drain(self, node: str, *, grace: int | None = None) -> None:
        """Cordon a node, and evict its pods."""
        self.cordon(node)
        for pod in self.call(lambda: clone(self._parts.store.list(PODS))):
            if pod["spec"].get("nodeName") == node:
                meta = pod["metadata"]
                self.evict(meta["name"], meta["namespace"], grace=grace)

    def node_lost(self, node: str) -> None:
        """A node is cut off: its processes go on, its pods are said to be not ready."""
        self.call(lambda: self._parts.nodes.lose(node))

    def node_silent(self, node: str) -> None:
        """A node is cut off, and still said to be ready: pods are bound to it, and never run."""
        self.call(lambda: self._parts.kubelet.lose(node))

    def node_back(self, node: str) -> None:
        """A node that was lost is there again."""
        self.call(lambda: self._parts.nodes.regain(node))

    def pause_scheduling(self) -> None:
        """Give no pod a node, until ``resume_scheduling``."""
        self._parts.scheduler.working = False

    def resume_scheduling(self) -> None:
        """Give pods nodes again."""

        def work() -> None:
            self._parts.scheduler.working = True
            self._parts.scheduler.all()

        self.call(work)

    @contextlib.contextmanager
    def older_scheduler(self) -> Iterator[None]:
        """Do not say which nodes could never take a pod: no scheduler before 1.34 does."""
        self._parts.scheduler.is_frank = False
        try:
            yield
        finally:
            self._parts.scheduler.is_frank = True

    def _pod(self, name: str, namespace: str) -> Object:
        return self._parts.store.need(PODS, namespace, name)

    def _handle(self, name: str, namespace: str) -> Any:
        worker = self._parts.kubelet.worker(self._pod(name, namespace))
        assert worker is not None, f"pod {name} was not started"
        return worker.boxes[0].handle

    def _stop(self, name: str, namespace: str, stop: Stop) -> None:
        def work() -> None:
            worker = self._parts.kubelet.worker(self._pod(name, namespace))
            assert worker is not None, f"pod {name} was not started"
            worker.stop(stop)

        self.call(work)

    def _nodes(self, name: str | None, work: Callable[[Object], object]) -> None:
        def change() -> None:
            for node in self._parts.store.list(NODES):
                if name in {None, node["metadata"]["name"]}:
                    new = clone(node)
                    work(new)
                    self._parts.store.update(NODES, new)

        self.call(change)


def _condition(status: str, reason: str, message: str) -> Object:
    return {
        "type": "Ready",
        "status": status,
        "lastHeartbeatTime": now(),
        "lastTransitionTime": now(),
        "reason": reason,
        "message": message,
    }
