"""The kubelets of all nodes, on one runtime: pods from their binding to their end, and volumes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from .access import Authority
from .deletion import Deletion, disrupt
from .hollow import Ended, Mount, StartRefused
from .objects import (
    CONFIG_MAPS,
    EVENTS,
    PODS,
    SECRETS,
    Object,
    Refused,
    Store,
    Subscription,
    clone,
    now,
)

#: phases of pods that have ended
ENDED = ("Succeeded", "Failed")
#: seconds that processes have whose object was deleted by force
_FORCED_GRACE = 2.0
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


def tell(store: Store, pod: Object, reason: str, message: str) -> None:
    """Record a warning event of a pod; of one that repeats, the last is kept."""
    meta = pod["metadata"]
    about = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"]}
    event: Object = {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": f"{meta['name']}.{reason}", "namespace": meta["namespace"]},
        "involvedObject": {**about, "uid": meta["uid"]},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": now(),
        "eventTime": None,
    }
    there = store.get(EVENTS, meta["namespace"], event["metadata"]["name"])
    if there is None:
        store.create(EVENTS, event)
    else:
        store.update(EVENTS, {**event, "metadata": dict(there["metadata"])})


def expand(text: str, known: dict[str, str]) -> str:
    """Replace ``$(NAME)`` by what is known; what is not stays."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else known.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


# -- status


@attrs.define
class Box:
    """One container of a pod."""

    spec: Object
    state: Object = attrs.field(factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    #: of the runtime: a container that runs or has run
    handle: Any = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def is_running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """None for a container that has not ended."""
        found: int | None = self.state.get("terminated", {}).get("exitCode")
        return found

    def set_ended(self, code: int, reason: str, message: str = "", started: str = "") -> None:
        told = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self.state = {"terminated": {**told, "message": message} if message else told}

    def end(self, how: Ended) -> None:
        """Note the end of a container that ran."""
        if self.is_running:
            reason = "OOMKilled" if how.oom else "Completed" if how.code == 0 else "Error"
            self.set_ended(how.code, reason, how.message, self.state["running"]["startedAt"])

    def status(self) -> Object:
        """Entry of ``containerStatuses``."""
        return {
            "name": self.name,
            "state": self.state,
            "restartCount": 0,
            "image": self.handle.image if self.handle else self.spec["image"],
            "imageID": self.handle.image_id if self.handle else "",
        }


def _phase(boxes: Sequence[Box]) -> str:
    codes = [box.exit_code for box in boxes]
    if None not in codes:
        return "Failed" if any(codes) else "Succeeded"
    is_begun = any(box.is_running or box.exit_code is not None for box in boxes)
    return "Running" if is_begun else "Pending"


# -- one pod


@attrs.frozen
class Stop:
    """Why a pod is stopped before its end."""

    grace: float
    #: as ``status.reason`` says it; empty for a deletion
    reason: str = ""
    message: str = ""
    #: whether a condition DisruptionTarget reports it
    disruption: bool = False


class Worker:
    """Leads one pod on its node."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self._kubelet = kubelet
        self._store = kubelet.store
        self.pod = pod
        self.node: str = pod["spec"]["nodeName"]
        self.boxes = [Box(spec) for spec in pod["spec"]["containers"]]
        self._ip = ""
        self._started = now()
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()

    def stop(self, stop: Stop) -> None:
        """End the pod; the first word counts."""
        if not self._stop.done():
            self._stop.set_result(stop)

    async def live(self) -> None:
        """Lead the pod until nothing of it runs any more."""
        self.write()
        work = asyncio.ensure_future(self._run())
        try:
            await asyncio.wait({work, self._stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not self._stop.done():
                await work
                await self._kubelet.reachable(self.node)
                self.write(_phase(self.boxes))
                if "deletionTimestamp" not in (self._current() or self.pod)["metadata"]:
                    # the object of a pod that has ended waits for its deletion
                    return
            await self._end(work, self._stop.result() if self._stop.done() else Stop(0))
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            if self._current() is None:
                # until then its logs can be read
                await self._kubelet.runtime.discard(self.pod)
            self._kubelet.volumes.discard(self.pod)

    async def _end(self, work: asyncio.Future[None], told: Stop) -> None:
        there = self._current()
        if told.disruption and there is not None:
            disrupt(self._store, there, "TerminationByKubelet", told.message)
        # nothing is started from here on
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        running = [box for box in self.boxes if box.is_running]
        await asyncio.gather(*(box.handle.stop(told.grace) for box in running))
        for box in running:
            box.end(await box.handle.wait())
        for box in self.boxes:
            if box.exit_code is None:
                message = "The container could not be located when the pod was terminated"
                box.set_ended(137, "ContainerStatusUnknown", message)
        await self._kubelet.reachable(self.node)
        self.write("Failed" if told.reason else _phase(self.boxes), told)
        there = self._current()
        if there is not None and "deletionTimestamp" in there["metadata"]:
            with contextlib.suppress(Refused):
                self._kubelet.deletion.delete(PODS, there, {"gracePeriodSeconds": 0})

    async def _run(self) -> None:
        """Start everything, and wait until all has ended."""
        mounts = await self._kubelet.volumes.mount(self.pod)
        self._ip = await self._kubelet.runtime.prepare(self.pod)
        self.write()
        await asyncio.gather(*(self._contain(box, mounts.get(box.name, [])) for box in self.boxes))

    async def _contain(self, box: Box, mounts: list[Mount]) -> None:
        environ = dict(self._kubelet.services)
        for variable in box.spec.get("env") or ():
            environ[variable["name"]] = expand(variable.get("value") or "", environ)
        try:
            box.handle = await self._kubelet.runtime.start(self.pod, box.spec, environ, mounts)
        except StartRefused as refused:
            if refused.reason == "StartError":
                box.set_ended(128, refused.reason, refused.message, "1970-01-01T00:00:00Z")
                self.write()
                return
            box.state = {"waiting": {"reason": refused.reason, "message": refused.message}}
            tell(self._store, self.pod, "Failed", f"Error: {refused.message}")
            self.write()
            # a node tries again and again, in vain here
            await self._stop
            return
        box.state = {"running": {"startedAt": now()}}
        self.write()
        box.end(await box.handle.wait())
        self.write()

    def _current(self) -> Object | None:
        return self._store.same(PODS, self.pod)

    def write(self, phase: str | None = None, stop: Stop | None = None) -> None:
        """Report to the API how the pod is, unless the node is cut off."""
        there = self._current()
        if there is None or self._kubelet.is_lost(self.node):
            return
        if there["status"].get("phase") in ENDED:
            phase = there["status"]["phase"]
        if phase is None:
            # that all have ended is reported first, that the pod has ended a moment later
            phase = _phase(self.boxes)
            if phase in ENDED:
                phase = "Running" if any(box.handle for box in self.boxes) else "Pending"
        status: Object = {
            "phase": phase,
            "conditions": there["status"].get("conditions") or [],
            "startTime": self._started,
            "containerStatuses": [box.status() for box in self.boxes],
        }
        if stop is not None and stop.reason:
            status |= {"reason": stop.reason, "message": stop.message}
        if self._ip:
            status["podIP"] = self._ip
        self.pod = self._store.update(PODS, {**clone(there), "status": clone(status)})


# -- all of them


@attrs.define
class Kubelet:
    """Leads the pods of every node."""

    store: Store
    deletion: Deletion
    runtime: Any
    volumes: Volumes
    #: environment of every container
    services: dict[str, str] = attrs.field(factory=dict)
    workers: dict[str, Worker] = attrs.field(factory=dict)
    #: what went wrong inside, for whoever closes the cluster
    failures: list[str] = attrs.field(factory=list)
    _tasks: dict[str, asyncio.Task[None]] = attrs.field(factory=dict)
    _lost: dict[str, asyncio.Event] = attrs.field(factory=dict)

    async def run(self, changes: Subscription) -> None:
        """Follow the pods, until the subscription is closed."""
        async for change in changes:
            if change.resource is PODS:
                self._handle(change.type, change.object)
            else:
                self.volumes.look_again()

    async def close(self) -> None:
        """End all pods at once."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.runtime.close()

    def worker(self, pod: Object) -> Worker | None:
        """The worker of a pod; one that has ended still answers for its logs."""
        return self.workers.get(pod["metadata"]["uid"])

    def is_lost(self, node: str) -> bool:
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
        """Join a node again: it reports what has happened, and hears what it missed."""
        news = self._lost.pop(node, None)
        if news is None:
            return
        news.set()
        for worker in list(self.workers.values()):
            if worker.node == node:
                worker.write()
                if self.store.same(PODS, worker.pod) is None:
                    worker.stop(Stop(_FORCED_GRACE))
        for pod in self.store.list(PODS):
            self._handle("MODIFIED", pod)

    def _handle(self, kind: str, pod: Object) -> None:
        meta = pod["metadata"]
        uid, node = meta["uid"], pod["spec"].get("nodeName")
        if not node or self.is_lost(node):
            return
        worker = self.workers.get(uid)
        if kind == "DELETED":
            if worker is not None:
                # by force: its processes get a little time, and nobody is told
                worker.stop(Stop(_FORCED_GRACE))
                if uid not in self._tasks:
                    del self.workers[uid]
                    self._tasks[uid] = asyncio.ensure_future(self._discard(uid, pod))
            return
        if self.store.same(PODS, pod) is None:
            # what became of it comes next
            return
        if worker is None and pod["status"].get("phase") not in ENDED:
            worker = self.workers[uid] = Worker(self, pod)
            self._tasks[uid] = asyncio.ensure_future(self._lead(uid, worker))
        if "deletionTimestamp" in meta:
            if worker is not None and uid in self._tasks:
                worker.stop(Stop(meta["deletionGracePeriodSeconds"]))
            else:
                self.deletion.delete(PODS, pod, {"gracePeriodSeconds": 0})

    async def _discard(self, uid: str, pod: Object) -> None:
        await self.runtime.discard(pod)
        del self._tasks[uid]

    async def _lead(self, uid: str, worker: Worker) -> None:
        try:
            await worker.live()
        except Exception:
            self.failures.append(traceback.format_exc())
        finally:
            del self._tasks[uid]
            if self.store.same(PODS, worker.pod) is None:
                self.workers.pop(uid, None)


# -- volumes


class Missing(Exception):  # noqa: N818 - an answer, no failure
    """A volume cannot be there yet."""


@attrs.define
class Volumes:
    """Makes and removes what pods mount: folders of this host."""

    store: Store
    authority: Authority
    folder: Path
    #: whether files are made at all; a hollow kubelet only waits for what is missing
    real: bool
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)

    def look_again(self) -> None:
        """Something that pods may wait for has changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def mount(self, pod: Object) -> dict[str, list[Mount]]:
        """Wait for a pod's volumes; the answer is the mounts of each container."""
        while True:
            news = self._news
            try:
                places = {
                    volume["name"]: self._place(pod, volume)
                    for volume in pod["spec"].get("volumes") or ()
                }
            except Missing as missing:
                tell(self.store, pod, "FailedMount", str(missing))
                await news.wait()
            else:
                break
        if not self.real:
            return {}
        return {
            container["name"]: [
                Mount(str(places[one["name"]]), one["mountPath"], bool(one.get("readOnly")))
                for one in container.get("volumeMounts") or ()
            ]
            for container in pod["spec"]["containers"]
        }

    def discard(self, pod: Object) -> None:
        """Remove what a pod alone has used."""
        shutil.rmtree(self._folder(pod), ignore_errors=True)

    def claim_folder(self, namespace: str, name: str) -> Path:
        """Where a claim's files are."""
        path = self.folder / "claims" / namespace / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def _folder(self, pod: Object) -> Path:
        return self.folder / "pods" / str(pod["metadata"]["uid"])

    def _place(self, pod: Object, volume: Object) -> Path:
        kind = next(key for key in volume if key != "name")
        source, folder = volume[kind], self._folder(pod) / volume["name"]
        if kind == "persistentVolumeClaim":
            return self.claim_folder(pod["metadata"]["namespace"], source["claimName"])
        if kind == "hostPath":
            return Path(source["path"])
        files: dict[str, bytes] = {}
        for part in source["sources"] if kind == "projected" else [{kind: source}]:
            files |= self._files(pod, volume["name"], part)
        if self.real:
            _write(folder, files, source.get("defaultMode", 0o777))
        return folder

    def _files(self, pod: Object, volume: str, part: Object) -> dict[str, bytes]:
        namespace = pod["metadata"]["namespace"]
        ((kind, source),) = part.items()
        if kind == "emptyDir":
            return {}
        if kind == "downwardAPI":
            # the namespace, which is all that the token's volume has of it
            return {item["path"]: namespace.encode() for item in source["items"]}
        if kind == "serviceAccountToken":
            account = pod["spec"]["serviceAccountName"]
            token = self.authority.account_token(namespace, account, pod)
            return {source["path"]: token.encode()}
        kept, word = (SECRETS, "secret") if kind == "secret" else (CONFIG_MAPS, "configmap")
        name = source.get("secretName") or source["name"]
        there = self.store.get(kept, namespace, name)
        if there is None:
            message = f'MountVolume.SetUp failed for volume "{volume}" : {word} "{name}" not found'
            raise Missing(message)
        data = there.get("data") or {}
        return {
            key: base64.b64decode(text) if kept is SECRETS else text.encode()
            for key, text in data.items()
        }


def _write(folder: Path, files: dict[str, bytes], mode: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755 if files else mode)
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(mode)
