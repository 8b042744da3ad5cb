"""Puts the parts of a cluster together, in the loop that they will run in."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import attrs

from .admission import Admission
from .authority import Authority
from .certificates import Certificates
from .controllers import Controllers
from .deletion import Deletion
from .faults import Faults
from .happenings import Happenings
from .kinds import (
    CLAIMS,
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    SECRETS,
)
from .kubelet import Kubelet
from .nodes import Nodes
from .podlogs import PodLogs
from .rest import Api
from .runtime import Runtime
from .scheduler import Scheduler
from .server import Server
from .store import Object, Store, Subscription
from .streams import Streams
from .subresources import Subresources
from .volumes import Volumes
from .watching import Watches

__all__ = ["Parts", "assemble"]

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


@attrs.define
class Parts:
    """All parts of a running cluster."""

    store: Store
    api: Api
    authority: Authority
    deletion: Deletion
    happenings: Happenings
    scheduler: Scheduler
    controllers: Controllers
    kubelet: Kubelet
    nodes: Nodes
    watches: Watches
    faults: Faults
    server: Server
    failures: list[str] = attrs.field(factory=list)
    _tasks: list[asyncio.Task[None]] = attrs.field(factory=list)
    _subscriptions: list[Subscription] = attrs.field(factory=list)

    def follow(self, work: Any, subscription: Subscription) -> None:
        """Run a controller on its changes."""
        self._subscriptions.append(subscription)
        self._tasks.append(asyncio.ensure_future(self._guard(work(subscription))))

    async def close(self) -> None:
        """End all of it."""
        await self.server.stop()
        for subscription in self._subscriptions:
            subscription.close()
        await self.kubelet.close()
        await self.kubelet.runtime.close()
        await asyncio.gather(*self._tasks)
        self.failures += [*self.kubelet.failures, *self.server.failures]

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self.failures.append(traceback.format_exc())


async def assemble(
    folder: Path,
    runtime: Runtime,
    addresses: Sequence[str],
    *,
    back_off: float,
    bookmarks: float,
    identified: bool = True,
) -> Parts:
    """Make and start everything but the nodes."""
    runtime.folder = folder / "notes"
    await runtime.open()
    addresses = (*addresses, *runtime.addresses)
    certificates = Certificates.make(folder, addresses, identified=identified)
    (folder / "ca.crt").write_text(certificates.authority)
    store = Store()
    authority = Authority(store)
    happenings = Happenings(store)
    deletion = Deletion(store)
    volumes = Volumes(store, authority, happenings, folder / "volumes", runtime.real)
    kubelet = Kubelet(store, deletion, happenings, runtime, volumes, back_off=back_off)
    api = Api(store, Admission(store), deletion)
    watches = Watches(store, bookmarks)
    faults = Faults()
    parts_of_pods = Subresources(
        store, deletion, kubelet, PodLogs(kubelet), Streams(kubelet, authority)
    )
    server = Server(
        store, api, authority, watches, faults, parts_of_pods, certificates.server_context()
    )
    controllers = Controllers(store, deletion, happenings, certificates.authority)
    nodes = Nodes(store, deletion, happenings, kubelet)
    scheduler = Scheduler(store, deletion, happenings)
    parts = Parts(
        store,
        api,
        authority,
        deletion,
        happenings,
        scheduler,
        controllers,
        kubelet,
        nodes,
        watches,
        faults,
        server,
    )
    for name in _NAMESPACES:
        _namespace(store, name)
    parts.follow(controllers.run, store.subscribe(NAMESPACES, CLAIMS, PODS, QUOTAS))
    parts.follow(scheduler.run, store.subscribe(PODS, NODES))
    parts.follow(kubelet.run, store.subscribe(PODS, SECRETS, CONFIG_MAPS, CLAIMS))
    parts.follow(nodes.run, store.subscribe(PODS, NODES))
    parts.follow(deletion.collect, store.subscribe())
    await server.listen(addresses)
    kubelet.services.update(_service(addresses[-1], server.port))
    return parts


def _namespace(store: Store, name: str) -> None:
    thing: Object = {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
    store.create(NAMESPACES, thing)


def _service(host: str, port: int) -> dict[str, str]:
    """The environment of the service ``kubernetes``."""
    address = f"tcp://{host}:{port}"
    return {
        "KUBERNETES_PORT": address,
        f"KUBERNETES_PORT_{port}_TCP": address,
        f"KUBERNETES_PORT_{port}_TCP_ADDR": host,
        f"KUBERNETES_PORT_{port}_TCP_PORT": str(port),
        f"KUBERNETES_PORT_{port}_TCP_PROTO": "tcp",
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
    }
