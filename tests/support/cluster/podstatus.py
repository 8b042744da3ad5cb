"""A pod's status, made of what its containers do. No time but what it is given, no sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .store import Object, now

__all__ = ["Box", "phase_of", "status_of"]


@attrs.define
class Box:
    """One container of a pod, as the kubelet knows it."""

    spec: Object
    state: Object = attrs.field(factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = attrs.field(factory=dict)
    restarts: int = 0
    image: str = ""
    image_id: str = ""
    container_id: str = ""
    #: what the runtime gave for it: a container that runs or has run
    handle: Any = None
    #: the one before the last restart
    previous: Any = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def ended(self) -> bool:
        return "terminated" in self.state

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that runs beside the others."""
        return self.spec.get("restartPolicy") == "Always"

    def status(self) -> Object:
        """As ``containerStatuses`` has it."""
        told: Object = {
            "name": self.name,
            "state": self.state,
            "lastState": self.last_state,
            "ready": self.running,
            "restartCount": self.restarts,
            "image": self.image or self.spec["image"],
            "imageID": self.image_id,
        }
        if self.container_id:
            told["containerID"] = self.container_id
        told["started"] = self.running
        if self.container_id:
            told["resources"] = self.spec.get("resources") or {}
        mounts = []
        for mount in self.spec.get("volumeMounts") or ():
            told_mount = {"name": mount["name"], "mountPath": mount["mountPath"]}
            if mount.get("readOnly"):
                told_mount |= {"readOnly": True, "recursiveReadOnly": "Disabled"}
            mounts.append(told_mount)
        if mounts:
            told["volumeMounts"] = mounts
        return told


def phase_of(policy: str, boxes: Sequence[Box], *, stopped: bool) -> str:
    """The phase of a pod.

    Args:
        policy: its restartPolicy.
        boxes: its containers, init containers left out.
        stopped: whether nothing will be started again.
    """
    if all(box.ended for box in boxes):
        codes = [box.state["terminated"]["exitCode"] for box in boxes]
        if stopped or policy == "Never" or (policy == "OnFailure" and not any(codes)):
            return "Failed" if any(codes) else "Succeeded"
        return "Running"
    if any(box.running or box.ended or box.last_state for box in boxes):
        return "Running"
    return "Pending"


def status_of(
    pod: Object,
    boxes: Sequence[Box],
    inits: Sequence[Box] = (),
    *,
    phase: str,
    sandbox: bool,
    host_ip: str,
    start_time: str,
    ip: str = "",
    reason: str = "",
    message: str = "",
    failing: bool = False,
) -> Object:
    """The whole status of a pod.

    Args:
        pod: as it is kept.
        boxes: its containers.
        inits: its init containers.
        phase: see ``phase_of``.
        sandbox: whether it has its network.
        host_ip: address of its node.
        start_time: when its kubelet saw it first.
        ip: its address, where it has one.
        reason: why the pod as a whole failed.
        message: the same as a sentence.
        failing: whether its node is about to end it.
    """
    old = pod["status"]
    generation = pod["metadata"].get("generation", 1)
    done = phase in {"Succeeded", "Failed"}
    unready = [box.name for box in boxes if not box.running]
    ran = [box for box in boxes if box.ended and box.container_id]
    codes = [box.state["terminated"]["exitCode"] for box in ran]
    policy = pod["spec"].get("restartPolicy")
    final = done or policy == "Never" or (policy == "OnFailure" and not any(codes))
    over = len(ran) == len(boxes) and final
    broken = policy == "Never" and any(
        box.ended and box.state["terminated"]["exitCode"] for box in inits
    )
    ready: Object = {"status": "False" if unready or done or failing else "True"}
    if over or failing or broken:
        failed = reason or failing or broken or any(codes)
        ready["reason"] = "PodFailed" if failed else "PodCompleted"
    elif unready:
        ready["reason"] = "ContainersNotReady"
        ready["message"] = f"containers with unready status: [{' '.join(unready)}]"
    initialized: Object = {"status": "True"}
    waiting = [box.name for box in inits if not _initialized(box)]
    if waiting and not over:
        text = f"containers with incomplete status: [{' '.join(waiting)}]"
        initialized = {"status": "False", "reason": "ContainersNotInitialized", "message": text}
    elif ready.get("reason") == "PodCompleted":
        initialized["reason"] = "PodCompleted"
    facts = {
        "PodReadyToStartContainers": {"status": "True" if sandbox and not done else "False"},
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": dict(ready),
        "PodScheduled": {"status": "True"},
    }
    status: Object = {"observedGeneration": generation, "phase": phase}
    status["conditions"] = _conditions(old.get("conditions") or (), facts, generation)
    if message:
        status["message"] = message
    if reason:
        status["reason"] = reason
    status["hostIP"] = host_ip
    status["hostIPs"] = [{"ip": host_ip}]
    if ip and (any(box.container_id for box in (*boxes, *inits)) or done):
        status["podIP"] = ip
        status["podIPs"] = [{"ip": ip}]
    status["startTime"] = start_time
    if inits:
        status["initContainerStatuses"] = [box.status() for box in inits]
    status["containerStatuses"] = [box.status() for box in boxes]
    status["qosClass"] = old.get("qosClass", "BestEffort")
    status["resources"] = {}
    return status


def _initialized(box: Box) -> bool:
    if box.sidecar:
        return box.running or box.ended
    return box.ended and box.state["terminated"]["exitCode"] == 0


def _conditions(old: Sequence[Object], facts: dict[str, Object], generation: int) -> list[Object]:
    before = {item["type"]: item for item in old}
    told = []
    for kind, fact in facts.items():
        there = before.get(kind)
        same = there is not None and there["status"] == fact["status"]
        moment = there["lastTransitionTime"] if there is not None and same else now()
        condition = {
            "type": kind,
            "observedGeneration": generation,
            "status": fact["status"],
            "lastProbeTime": None,
            "lastTransitionTime": moment,
        }
        told.append(condition | {k: v for k, v in fact.items() if k != "status"})
    return [item for item in old if item["type"] not in facts] + told
