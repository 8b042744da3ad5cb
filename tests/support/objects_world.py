"""Several processes' worth of shared objects in one process, over real connections."""

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs

from fiber._base.threads import Reactor
from fiber._launch.child import Child
from fiber._launch.router import Router
from fiber._objects.address import Kind
from fiber._objects.queue.channel import Channel
from fiber._objects.store import Store
from fiber._wire import frames
from fiber._wire.client import Client
from fiber._wire.endpoint import Endpoint
from fiber._wire.handshake import Credentials
from fiber.exceptions import PeerLostError
from fiber.model.timing import Timing
from wire_world import address, hello

RUN = Credentials.new()


class Node:
    """A process with a store: the parts of a runtime that a store uses, and the store."""

    def __init__(
        self,
        ident: str,
        folder: Path,
        *,
        host: str | None = None,
        linger: float = 5.0,
        timing: Timing = Timing(),
        kernel_objects: bool = False,
        scheme: str = "ipc",
    ):
        mine = hello(ident)
        self.hello = mine if host is None else attrs.evolve(mine, host=host)
        self.ident = ident
        self.run_id = RUN.run_id
        self.credentials = RUN
        self.exit_code = 0
        #: identity of the node that plays its parent, and the children of this one by identity
        self.parent_ident = ""
        self.parent_link = None
        self.children: dict[str, Child] = {}
        self.directory = folder
        self.config = SimpleNamespace(linger=linger, max_frame=frames.MAX_FRAME)
        self.timing = timing
        self.reactor = Reactor(f"test-{ident}")
        self.instructions = None
        self.router = Router(self)  # type: ignore[arg-type] # it has what the router uses
        self.endpoint = Endpoint(RUN, self.hello, self.reactor)
        self.endpoint.listen(address(scheme, folder))
        self._targets = itertools.count(1)
        self._clients: dict[str, Client] = {}
        self.store = Store(self)  # type: ignore[arg-type] # it has what a store uses
        self.store.is_one_host = kernel_objects

    def new_target(self) -> int:
        return next(self._targets)

    def child_of(self, ident: str) -> tuple[Child, int] | None:
        child = self.children.get(ident)
        return None if child is None else (child, 0)

    def adopt(self, other: "Node") -> Child:
        """Become the parent of another node, whose end is for the caller to report."""
        other.parent_ident = self.ident
        child = self.children[other.ident] = Child(other.ident, other.ident, None)  # type: ignore[arg-type] # it starts nothing
        return child

    def client(self, url: str) -> Client:
        found = self._clients.get(url)
        if found is None or found.lost:
            found = self._clients[url] = Client(url, self.credentials, self.hello, self.reactor)
        return found

    def make(self, kind: Callable[..., Any], *arguments: Any) -> Any:
        """An object of this node, held."""
        made = kind(self.store, *arguments)
        made.hold(0)
        return made

    def queue(self, maxsize: int = 0) -> Channel:
        made = Channel(self.store, Kind.QUEUE, maxsize)
        made.hold(0)
        return made

    def pipe(self, kind: Kind = Kind.PIPE) -> Channel:
        made = Channel(self.store, kind)
        made.hold(0)
        made.hold(1)
        return made

    def remote(self, channel: Channel, end: int = 0) -> Any:
        """Another node's object at this one, held, once the owner has counted that."""
        remote = self.store.hold(channel.address, end, 0)
        remote.sync()
        return remote

    def die(self) -> None:
        """End as a killed process does."""
        for client in self._clients.values():
            client.close()
        self.endpoint.close()
        self.reactor.stop()
        self.store.is_closing = True
        for owner in list(self.store._owners.values()):
            owner.close()
        if self.store._background is not None:
            self.store._background.close()

    def close(self) -> None:
        """End as a process does that ends normally."""
        self.store.close()
        self.die()

    def end(self, code: int | None) -> None:
        """End with an exit code; None for being killed."""
        if code is None:
            self.die()
        else:
            self.exit_code = code
            self.close()


class World:
    """Makes nodes and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []

    def node(self, ident: str, **options: Any) -> Node:
        node = Node(ident, self.folder, **options)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        # readers before owners, so that no owner lingers for them
        for node in reversed(self.nodes):
            with contextlib.suppress(PeerLostError):
                node.die()


def take(side: Any, timeout: float | None = 20, block: bool = True) -> bytes:
    """The next item of an object's first direction."""
    return bytes(side.reader(0).take(block, timeout))


def put(side: Any, *items: bytes, timeout: float | None = None, block: bool = True) -> None:
    """Put items into an object's first direction."""
    for item in items:
        side.writer(0).put(item, block, timeout)


def fetching(side: Any) -> Any:
    """The reader of an object's first direction, made to fetch all that there is with one item."""
    reader = side.reader(0)
    reader._batch, reader._since = 1000, time.monotonic()
    return reader
