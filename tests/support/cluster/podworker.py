"""One pod on its node: from its binding to its end, as a kubelet leads it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import attrs

from . import tales
from .happenings import Happenings
from .kinds import PODS
from .podenv import environment
from .podstatus import Box, phase_of, status_of
from .refusals import Refused
from .runtime import Mount, Running, Runtime, StartRefused
from .store import Object, Store, clone, now
from .volumes import Volumes

__all__ = ["Stop", "Surroundings", "Worker"]

_FORCED_GRACE = 2.0


@attrs.frozen
class Stop:
    """Why a pod is stopped before its end."""

    grace: float
    #: as ``status.reason`` says it; empty for a deletion
    reason: str = ""
    message: str = ""
    #: whether a condition DisruptionTarget tells of it
    disruption: bool = False


class Surroundings(Protocol):
    """What a worker needs of its kubelet."""

    store: Store
    happenings: Happenings
    runtime: Runtime
    volumes: Volumes
    services: dict[str, str]
    #: first wait before a container is started again, or an image asked for again
    back_off: float

    def host_ip(self, node: str) -> str: ...
    def lost(self, node: str) -> bool: ...
    def finished(self, pod: Object) -> None: ...
    def remove(self, pod: Object, options: Object) -> None: ...
    async def reachable(self, node: str) -> None: ...


class Worker:
    """Leads one pod."""

    def __init__(self, kubelet: Surroundings, pod: Object) -> None:
        self._kubelet = kubelet
        self.pod = pod
        self.node: str = pod["spec"]["nodeName"]
        self.boxes = [Box(spec) for spec in pod["spec"]["containers"]]
        self.inits = [Box(spec) for spec in pod["spec"].get("initContainers") or ()]
        self.ip = ""
        self._sandbox = False
        self._started = now()
        if self.inits:
            for box in (*self.boxes, *self.inits):
                box.state = {"waiting": {"reason": "PodInitializing"}}
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._gone = False

    def stop(self, stop: Stop) -> None:
        """End the pod; the first word counts."""
        if not self._stop.done():
            self._stop.set_result(stop)

    def object_gone(self) -> None:
        """The object was deleted by force: its processes get a little time, nobody is told."""
        self._gone = True
        self.stop(Stop(_FORCED_GRACE))

    def resume(self) -> None:
        """Tell the API what happened while the node was away."""
        self._write(force=True)

    def box(self, name: str | None) -> Box | None:
        """A container by name, or the first one."""
        boxes = [*self.boxes, *self.inits]
        return next((box for box in boxes if name is None or box.name == name), None)

    async def live(self) -> None:
        """Lead the pod until nothing of it runs any more."""
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        timer = None
        if deadline is not None:
            timer = asyncio.get_running_loop().call_later(float(deadline), self._overdue)
        try:
            await self._live()
        finally:
            if timer is not None:
                timer.cancel()
            if self._current() is None:
                # until then its logs can be read
                await self._kubelet.runtime.discard(self.pod)
            self._kubelet.volumes.discard(self.pod)

    async def _live(self) -> None:
        self._write()
        work = asyncio.ensure_future(self._run())
        stop = asyncio.ensure_future(asyncio.shield(self._stop))
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not self._stop.done():
                await work
                await self._kubelet.reachable(self.node)
                self._write(phase=self._phase(stopped=True))
                self._kubelet.finished(self.pod)
                if not self._deleted():
                    # the object of a pod that has ended waits for its deletion
                    return
            told = self._stop.result() if self._stop.done() else Stop(0)
            await self._end(work, told)
        finally:
            for task in (work, stop):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _end(self, work: asyncio.Future[None], told: Stop) -> None:
        if told.reason:
            self._tell(told.reason, told.message, warning=told.disruption)
            self._disrupted(told)
        # nothing is started again from here on
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        running = [box for box in (*self.boxes, *self.inits) if box.running]
        for box in running:
            self._tell("Killing", f"Stopping container {box.name}", box)
        # of an eviction nothing is told before its end
        if running and told.reason != "Evicted":
            self._write(failing=bool(told.reason))
        main = [box for box in running if box in self.boxes]
        await asyncio.gather(*(box.handle.stop(told.grace) for box in main))
        await asyncio.gather(*(box.handle.stop(told.grace) for box in running if box not in main))
        for box in running:
            if box.running:
                tales.ended(box, await box.handle.wait())
        for box in self.boxes:
            if not box.ended:
                tales.never_was(box)
        phase = "Failed" if told.reason else self._phase(stopped=True)
        await self._kubelet.reachable(self.node)
        self._write(phase=phase, stop=told)
        if self._deleted() and not self._gone:
            self._remove()
        self._kubelet.finished(self.pod)

    async def _run(self) -> None:
        """Start everything, and wait until all has ended for good."""
        kubelet = self._kubelet
        mounts = await kubelet.volumes.mount(self.pod)
        self.ip = await kubelet.runtime.prepare(self.pod)
        self._sandbox = True
        self._write()
        sidecars = []
        for box in self.inits:
            if box.sidecar:
                up = asyncio.Event()
                sidecars.append(asyncio.ensure_future(self._contain(box, mounts, up)))
                await up.wait()
                continue
            await self._contain(box, mounts)
            if box.state["terminated"]["exitCode"]:
                return
        await asyncio.gather(*(self._contain(box, mounts) for box in self.boxes))
        for task in sidecars:
            task.cancel()
        for box in self.inits:
            if box.running:
                self._tell("Killing", f"Stopping container {box.name}", box)
                await box.handle.stop(self.pod["spec"]["terminationGracePeriodSeconds"])
                tales.ended(box, await box.handle.wait())

    async def _contain(
        self, box: Box, mounts: dict[str, list[Mount]], up: asyncio.Event | None = None
    ) -> None:
        """Run one container until it has ended for good."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if box in self.inits:
            policy = "Always" if box.sidecar else ("Never" if policy == "Never" else "OnFailure")
        wait = self._kubelet.back_off
        while True:
            handle = await self._start(box, mounts)
            if handle is None:
                self._write()
                if policy == "Never":
                    return
            else:
                if up is not None:
                    up.set()
                tales.ended(box, await handle.wait())
                self._write()
            code = box.state["terminated"]["exitCode"]
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            if box.restarts:
                tales.backs_off(self._tell, self.pod, box, wait)
                self._write()
                await asyncio.sleep(wait)
                wait = min(wait * 2, 300)
            else:
                box.last_state = box.state
            box.restarts += 1
            box.previous = box.handle

    async def _start(self, box: Box, mounts: dict[str, list[Mount]]) -> Running | None:
        """Start a container, trying again where the kubelet would; None where it cannot start."""
        kubelet, wait = self._kubelet, self._kubelet.back_off
        while True:
            try:
                environ = environment(
                    kubelet.store, self.pod, box.spec, self.ip, kubelet.host_ip(self.node)
                )
                environ = {**kubelet.services, **environ}
                handle = await kubelet.runtime.start(
                    self.pod, box.spec, environ, mounts.get(box.name, []), box.restarts
                )
            except StartRefused as refused:
                if not refused.retried:
                    tales.created(self._tell, box)
                    self._tell("Failed", f"Error: {refused.message}", box, warning=True)
                    tales.refused(box, refused)
                    return None
                tales.waits(self._tell, box, refused)
                self._write()
                await asyncio.sleep(wait)
                if refused.reason == "ErrImagePull":
                    tales.pull_backs_off(self._tell, box, refused)
                    self._write()
                    await asyncio.sleep(wait)
                wait = min(wait * 2, 300)
            else:
                break
        box.handle, box.container_id = handle, handle.container_id
        box.image, box.image_id = handle.image, handle.image_id
        tales.created(self._tell, box)
        self._tell("Started", "Container started", box)
        box.state = {"running": {"startedAt": now()}}
        self._write()
        return handle

    def _overdue(self) -> None:
        text = "Pod was active on the node longer than the specified deadline"
        grace = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        self.stop(Stop(grace, "DeadlineExceeded", text))

    def _phase(self, *, stopped: bool) -> str:
        never = self.pod["spec"].get("restartPolicy") == "Never"
        if never and any(b.ended and b.state["terminated"]["exitCode"] for b in self.inits):
            return "Failed"
        return phase_of(
            self.pod["spec"].get("restartPolicy", "Always"), self.boxes, stopped=stopped
        )

    def _disrupted(self, told: Stop) -> None:
        if not told.disruption:
            return
        there = self._current()
        if there is None:
            return
        new = clone(there)
        new["status"].setdefault("conditions", []).insert(
            0,
            {
                "type": "DisruptionTarget",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": now(),
                "reason": "TerminationByKubelet",
                "message": told.message,
            },
        )
        self._kubelet.store.update(PODS, new)

    def _current(self) -> Object | None:
        meta = self.pod["metadata"]
        there = self._kubelet.store.get(PODS, meta["namespace"], meta["name"])
        if there is None or there["metadata"]["uid"] != meta["uid"]:
            return None
        return there

    def _deleted(self) -> bool:
        there = self._current()
        return there is not None and "deletionTimestamp" in there["metadata"]

    def _write(
        self,
        phase: str | None = None,
        stop: Stop | None = None,
        *,
        force: bool = False,
        failing: bool = False,
    ) -> None:
        """Tell the API how the pod is, unless the node is cut off."""
        if self._kubelet.lost(self.node):
            return
        there = self._current()
        if there is None:
            return
        if there["status"].get("phase") in {"Succeeded", "Failed"} and not force:
            phase = there["status"]["phase"]
        if phase is None:
            # that all have ended is told first, that the pod has ended a moment later
            phase = self._phase(stopped=False)
            if phase in {"Succeeded", "Failed"}:
                phase = "Running" if any(box.handle for box in self.boxes) else "Pending"
        new = clone(there)
        new["status"] = status_of(
            there,
            self.boxes,
            self.inits,
            phase=phase,
            sandbox=self._sandbox,
            host_ip=self._kubelet.host_ip(self.node),
            start_time=self._started,
            ip=self.ip,
            reason=stop.reason if stop else "",
            message=stop.message if stop else "",
            failing=failing,
        )
        self.pod = self._kubelet.store.update(PODS, new)

    def _remove(self) -> None:
        there = self._current()
        if there is None or self._kubelet.lost(self.node):
            return
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": there["metadata"]["uid"]}}
        with contextlib.suppress(Refused):
            self._kubelet.remove(there, options)

    def _tell(
        self, reason: str, message: str, box: Box | None = None, *, warning: bool = False
    ) -> None:
        if self._kubelet.lost(self.node):
            return
        name = box.name if box is not None else None
        there = self._current() or self.pod
        self._kubelet.happenings.tell(
            there, reason, message, node=self.node, container=name, warning=warning
        )
