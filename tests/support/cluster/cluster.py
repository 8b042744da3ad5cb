"""The emulated cluster as tests use it: its start and end, its clients, its nodes and faults."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from .access import Authority
from .certificates import Certificates
from .deletion import Deletion
from .hollow import Act, Ended, Hollow
from .kubelet import ENDED, Kubelet, Stop, Volumes, Worker
from .objects import (
    CONFIG_MAPS,
    NODES,
    PODS,
    SECRETS,
    Object,
    Resource,
    Store,
    Subscription,
    clone,
    of,
    quantity,
)
from .scheduling import GROUP_SCHEDULERS, Scheduler
from .server import Call, Refusal, Server
from .streams import Streams

T = TypeVar("T")
_PATIENCE = 120.0
_CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "50Gi"}
_GPU = "nvidia.com/gpu"
#: what Fiber makes for a run
RUN_KINDS = ("pods", "secrets", "leases")


class Cluster:
    """A cluster that runs until its block ends. Made by ``Cluster.start``."""

    def __init__(self, folder: Path, runtime: Any, *, identified: bool) -> None:
        self._folder, self._runtime = folder, runtime
        self._loop = asyncio.get_running_loop()
        addresses = ("127.0.0.1", *runtime.addresses)
        certificates = Certificates(folder, identified=identified)
        certificates.make("server", "kube-apiserver", addresses=addresses)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
        self.store = Store()
        self._authority, self._deletion = Authority(self.store), Deletion(self.store)
        self.volumes = Volumes(self.store, self._authority, folder / "volumes", runtime.real)
        self._kubelet = Kubelet(self.store, self._deletion, runtime, self.volumes)
        self._scheduler = Scheduler(self.store)
        streams = Streams(self._kubelet)
        self._server = Server(
            self.store, self._authority, self._deletion, streams, context, addresses
        )
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        *,
        script: Callable[[Object], Act] = lambda _: Act(),
        runtime: Any = None,
        nodes: Sequence[str] = ("knode",),
        capacity: dict[str, str] | None = None,
        identified: bool = True,
    ) -> Iterator[Cluster]:
        """Start a cluster, and end all of it.

        Args:
            script: what hollow pods do, by their object; default: they run until ended.
            runtime: runs containers instead of the hollow one (see ``cluster.real``).
            nodes: names of the nodes.
            capacity: of each node; default 4 cpu, 8Gi, 110 pods.
            identified: False for certificates without key identifiers.
        """
        folder = Path(tempfile.mkdtemp(prefix="fk-"))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="cluster")
        thread.start()
        runtime = runtime or Hollow(script)

        async def make() -> Cluster:
            await runtime.open(folder / "notes")
            cluster = cls(folder, runtime, identified=identified)
            await cluster._begin()
            return cluster

        try:
            cluster = _on(loop, make())
            try:
                cluster.add_namespace("default")
                for name in nodes:
                    cluster.add_node(name, capacity)
                yield cluster
            finally:
                _on(loop, cluster._end())
            if failures := [*cluster._kubelet.failures, *cluster._server.failures]:
                raise AssertionError("\n".join(failures))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            shutil.rmtree(folder)

    async def _begin(self) -> None:
        groups = [one.resource for one in GROUP_SCHEDULERS.values()]
        self._follow(self._scheduler.run, PODS, NODES, *groups)
        self._follow(self._kubelet.run, PODS, SECRETS, CONFIG_MAPS)
        self._follow(self._deletion.collect)
        await self._server.listen()
        host, port = self._server.addresses[-1], str(self._server.port)
        self._kubelet.services |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def _follow(self, work: Any, *resources: Resource) -> None:
        """Run a controller on its changes."""
        subscription = self.store.subscribe(*resources)
        self._subscriptions.append(subscription)
        self._tasks.append(asyncio.ensure_future(self._guard(work(subscription))))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self._kubelet.failures.append(traceback.format_exc())

    async def _end(self) -> None:
        await self._server.stop()
        for subscription in self._subscriptions:
            subscription.close()
        await self._kubelet.close()
        await asyncio.gather(*self._tasks)
        # connections in the midst of their handshake, and those that have ended it meanwhile
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._server.cut_connections()

    # -- clients

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self._server.port}"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the administrator, whose context is in namespace ``default``."""
        path = self._folder / "kubeconfig"
        return path if path.exists() else self.write_kubeconfig(path)

    def write_kubeconfig(self, path: Path, *, user: str = "admin") -> Path:
        """Write a kubeconfig for a user.

        Args:
            path: where.
            user: "admin", ``NAMESPACE/SERVICE_ACCOUNT``, or the name of a user without rights.
        """
        context = {"cluster": "emulated", "user": user, "namespace": "default"}
        server = {"server": self.url, "certificate-authority": str(self._folder / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "emulated", "cluster": server}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "emulated", "context": context}],
            "current-context": "emulated",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def token(self, user: str = "admin") -> str:
        """A token of a user, named as for ``write_kubeconfig``."""
        authority = self._authority
        if "/" in user:
            namespace, name = user.split("/")
            return self.call(lambda: authority.account_token(namespace, name))
        return self.call(lambda: authority.user_token(user))

    @property
    def requests(self) -> list[Call]:
        """Every call that reached the server so far."""
        return list(self._server.calls)

    def forget_requests(self) -> None:
        """Count from here."""
        self._server.calls.clear()

    # -- objects, without a client

    def objects(self, plural: str, namespace: str | None = None) -> list[Object]:
        """Copies of all objects of a kind."""
        resource = _resource(plural)
        return self.call(lambda: clone(self.store.list(resource, namespace)))

    def history(self, plural: str, namespace: str | None = None) -> list[tuple[str, Object]]:
        """Every change of a kind so far: ADDED, MODIFIED or DELETED, and the object after it."""
        resource = _resource(plural)
        changes = self.call(lambda: list(self.store.changes))
        return [
            (one.type, clone(one.object))
            for one in changes
            if one.resource is resource
            and namespace in {None, one.object["metadata"].get("namespace")}
        ]

    def get(self, plural: str, name: str, namespace: str = "default") -> Object | None:
        """A copy of an object; None where there is none."""
        resource = _resource(plural)
        where = namespace if resource.namespaced else None
        return self.call(lambda: clone(self.store.get(resource, where, name)))

    def create(self, plural: str, thing: Object, namespace: str = "default") -> Object:
        """Make an object as the administrator would."""
        resource = _resource(plural)
        where = namespace if resource.namespaced else None
        return self.call(lambda: clone(self._server.create(resource, where, clone(thing))))

    def wait_for(
        self, plural: str, test: Callable[[list[Object]], Any], *, timeout: float = 30.0
    ) -> Any:
        """Wait until a test of all objects of a kind is true; the answer is the test's."""
        resource = _resource(plural)
        store, deadline = self.store, time.monotonic() + timeout

        def look() -> tuple[int, list[Object]]:
            return store.version, clone(store.list(resource))

        async def news(version: int) -> None:
            changes = store.subscribe(resource, since=max(version, store.floor))
            try:
                await asyncio.wait_for(changes.get(), max(deadline - time.monotonic(), 0))
            finally:
                changes.close()

        # the test runs in the caller's thread, so that it may ask the cluster too
        while True:
            version, things = self.call(look)
            if found := test(things):
                return found
            try:
                _on(self._loop, news(version))
            except asyncio.TimeoutError:
                broken = "\n".join(self._kubelet.failures)
                msg = f"{plural} did not become so within {timeout:g} s: {things}\n{broken}"
                raise AssertionError(msg) from None

    def left(self, run_id: str, plurals: Sequence[str] = RUN_KINDS) -> list[str]:
        """Objects that exist of a run, or of any where it is empty: ``KIND NAME``."""
        return [
            f"{plural} {one['metadata']['name']}"
            for plural in plurals
            for one in self.objects(plural)
            if (run := (one["metadata"].get("labels") or {}).get("fiber/run"))
            and run_id in {"", run}
        ]

    def wait_until_gone(self, run_id: str = "", plurals: Sequence[str] = RUN_KINDS) -> None:
        """Wait until nothing is left of a run, or of any."""
        for plural in plurals:
            self.wait_for(plural, lambda _, of=(plural,): not self.left(run_id, of), timeout=60.0)

    def add_namespace(self, name: str) -> None:
        """Make a namespace with its default service account."""
        self.create("namespaces", {"metadata": {"name": name}})
        self.create("serviceaccounts", {"metadata": {"name": "default"}}, name)
        certificate = {"ca.crt": (self._folder / "ca.crt").read_text()}
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": certificate}
        self.create("configmaps", root, name)

    def create_claim(self, name: str) -> None:
        """Make a claim, whose storage is there at once."""
        self.create("persistentvolumeclaims", {"metadata": {"name": name}})

    def add_account(
        self, name: str, rules: Sequence[Object] = (), namespace: str = "default"
    ) -> str:
        """Make a service account with a role; the answer is its name for ``token``."""
        self.create("serviceaccounts", {"metadata": {"name": name}}, namespace)
        role = {"metadata": {"name": name}, "rules": list(rules)}
        self.create("roles", role, namespace)
        binding = {
            "metadata": {"name": name},
            "roleRef": {"kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        }
        self.create("rolebindings", binding, namespace)
        return f"{namespace}/{name}"

    def call(self, work: Callable[[], T]) -> T:
        """Run something in the server's loop, and wait for it."""

        async def run() -> T:
            return work()

        return _on(self._loop, run())

    # -- faults of the API

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """The API server is away: connections are cut, new ones refused; the pods go on."""
        self.stop_api()
        try:
            yield
        finally:
            self.start_api()

    def stop_api(self) -> None:
        """Begin an outage."""
        _on(self._loop, self._server.stop())

    def start_api(self) -> None:
        """End it; a server that is started again has forgotten what was before."""
        self.expire()
        _on(self._loop, self._server.listen())

    def cut_watches(self) -> None:
        """Cut the connection of each watch."""
        self.call(lambda: self._server.end_watches(cut=True))

    def end_watches(self) -> None:
        """End each watch regularly, as the server does after its timeout."""
        self.call(self._server.end_watches)

    def expire(self) -> None:
        """Forget the history: watches from before get 410."""
        self.call(self.store.forget_history)

    def refuse(
        self,
        code: int,
        *,
        retry_after: int | None = None,
        matching: Callable[[Call], bool] = lambda _: True,
        times: int | None = None,
        message: str | None = None,
    ) -> Refusal:
        """Refuse requests, until the end of a block, or a number of times."""
        refusal = Refusal(code, retry_after, matching, times, message)
        self.call(lambda: self._server.refusals.append(refusal))
        return refusal

    def refuse_pods(self, message: str, *, beyond: int = 0) -> Refusal:
        """Refuse to create pods where so many exist that have not ended, as policies and quotas do."""
        store = self.store

        def matches(call: Call) -> bool:
            pods = [one for one in store.list(PODS) if one["status"].get("phase") not in ENDED]
            return (call.verb, call.resource) == ("create", "pods") and len(pods) >= beyond

        return self.refuse(403, matching=matches, message=message)

    # -- faults of pods

    def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        """Delete a pod as somebody else would."""
        options = {"gracePeriodSeconds": grace}
        self._on_pod(name, lambda pod: self._deletion.delete(PODS, pod, options))

    def evict(self, name: str, *, grace: int | None = None) -> None:
        """Evict a pod through the API, as a drain does."""
        options = {"gracePeriodSeconds": grace}
        self._on_pod(name, lambda pod: self._deletion.evict(pod, options))

    def kubelet_evict(
        self, name: str, namespace: str = "default", *, pressure: bool = True
    ) -> None:
        """Evict a pod as its node does when something runs out; its object stays, failed.

        Args:
            name: of the pod.
            namespace: of the pod.
            pressure: whether it is the node that runs out; else the pod has used more than its limits.
        """
        stop = Stop(0, "Evicted", "The node was low on resource: memory. ", disruption=pressure)
        self._on_pod(name, lambda pod: self._worker(pod).stop(stop), namespace)

    def preempt(self, name: str) -> None:
        """End a pod as the scheduler does for a more important one."""
        self._on_pod(name, self._deletion.preempt)

    def end(self, name: str, *, code: int = 0) -> None:
        """A hollow pod's process ends."""
        self._on_pod(name, lambda pod: self._worker(pod).boxes[0].handle.end(Ended(code)))

    def say(self, name: str, text: str) -> None:
        """A hollow pod writes to its log."""
        self._on_pod(name, lambda pod: self._worker(pod).boxes[0].handle.write(text))

    # -- nodes

    def add_node(self, name: str, capacity: dict[str, str] | None = None) -> None:
        """A node joins."""
        holds = _CAPACITY | (capacity or {})
        # no machine's memory is a round number: the firmware has its part
        holds["memory"] = f"{int(quantity(holds['memory'])) // 1024 - 4}Ki"
        labels = {"kubernetes.io/hostname": name}
        status = {"allocatable": holds}
        self.create(
            "nodes", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
        )

    def add_gpus(self, count: int) -> None:
        """Each node gets GPUs."""
        for node in self.objects("nodes"):
            part = {_GPU: str(count)}
            self._change(node, status={"allocatable": {**node["status"]["allocatable"], **part}})

    def cordon(self, name: str) -> None:
        """A node takes no new pods."""
        self._change(self.get("nodes", name), spec={"unschedulable": True})

    def uncordon(self, name: str) -> None:
        """A node takes pods again."""
        self._change(self.get("nodes", name), spec={"unschedulable": False})

    def node_silent(self, node: str) -> None:
        """A node is cut off: its processes go on, and pods that are bound to it never run."""
        self.call(lambda: self._kubelet.lose(node))

    def node_back(self, node: str) -> None:
        """A node that was silent is there again."""
        self.call(lambda: self._kubelet.regain(node))

    def install(self, scheduler: str) -> None:
        """Install the kinds of a scheduler of groups: ``scheduler-plugins`` or ``volcano``."""
        (group,) = [
            one.resource.group for name, one in GROUP_SCHEDULERS.items() if scheduler in name
        ]
        self.call(lambda: self._server.absent.discard(group))

    @contextlib.contextmanager
    def older_scheduler(self) -> Iterator[None]:
        """Do not say which nodes could never take a pod: no scheduler before 1.34 does."""
        self._scheduler.is_frank = False
        try:
            yield
        finally:
            self._scheduler.is_frank = True

    # -- within

    def _on_pod(
        self, name: str, work: Callable[[Object], object], namespace: str = "default"
    ) -> None:
        self.call(lambda: work(self.store.need(PODS, namespace, name)))

    def _worker(self, pod: Object) -> Worker:
        worker = self._kubelet.worker(pod)
        assert worker is not None, f"pod {pod['metadata']['name']} was not started"
        return worker

    def _change(self, node: Object | None, **parts: Object) -> None:
        assert node is not None
        for name, changes in parts.items():
            node[name] |= changes
        self.call(lambda: self.store.update(NODES, node))


def _resource(plural: str) -> Resource:
    found = of(plural)
    assert found is not None, plural
    return found


def _on(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(_PATIENCE)
