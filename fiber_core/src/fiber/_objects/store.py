"""Store: the shared objects of one process, its own and those of others that it uses.

Also the table of the classes that stand for each kind in other processes than the owner's.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._agent.rundir import Notes
from fiber._base import values
from fiber._base.entry_points import load_object
from fiber._base.threads import Deadline, SerialExecutor, turn
from fiber._launch.wills import leave_will
from fiber._objects.address import SOCKETS, Address, Kind, auth_domain_of
from fiber._objects.auth_domain import AuthDomains
from fiber._objects.blocks.copies import UnusedCopies
from fiber._objects.memory import backing
from fiber._objects.memory.backing import Location
from fiber._objects.owned_object import OwnedObject
from fiber._objects.queue import progress
from fiber._objects.queue.messages import ItemWithReferences, Reference
from fiber._objects.remote_object import Owner, RemoteObject
from fiber._runtime import runtime
from fiber._wire.endpoint import Peer
from fiber._wire.unix import SCHEME
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber._wire.client import Client
    from fiber.model.timing import Timing

# by name, so that a process imports only the kinds that it uses
_CLASSES = {
    Kind.QUEUE: "fiber._objects.queue.remote_channel:RemoteChannel",
    Kind.PIPE: "fiber._objects.queue.remote_channel:RemoteChannel",
    Kind.ONE_WAY: "fiber._objects.queue.remote_channel:RemoteChannel",
    Kind.TASKS: "fiber._objects.queue.tasks:RemoteTasks",
    Kind.LOCK: "fiber._objects.sync.semaphore:RemoteSemaphore",
    Kind.RLOCK: "fiber._objects.sync.semaphore:RemoteSemaphore",
    Kind.SEMAPHORE: "fiber._objects.sync.semaphore:RemoteSemaphore",
    Kind.MEMORY: "fiber._objects.memory.heap:RemoteMemory",
    Kind.CONDITION: "fiber._objects.sync.condition:RemoteCondition",
    Kind.EVENT: "fiber._objects.sync.event:RemoteEvent",
    Kind.BARRIER: "fiber._objects.sync.barrier:RemoteBarrier",
    Kind.BLOCK: "fiber._objects.blocks.block:RemoteBlock",
    Kind.STORAGE: "fiber._objects.remote_object:RemoteObject",
    Kind.REFERENT: "fiber._objects.managed.referent:RemoteReferent",
}


def remote_class(kind: Kind) -> type[RemoteObject]:
    """Class of the other processes' side of a kind."""
    found: type[RemoteObject] = load_object(_CLASSES[kind])
    return found


# key of the pages in a peer's state; targets are not negative
_PAGES = -1

log = logging.getLogger("fiber")

_store: Store | None = None
_making = threading.Lock()


def current() -> Store:
    """The store of this process.

    Raises:
        ForkedError: in a process that the user forked from one that used fiber.
    """
    global _store  # noqa: PLW0603 - there is one a process, as there is one runtime
    node = runtime.current()
    with _making:
        if _store is None or _store.node is not node:
            _store = Store(node)
            node.own(_store)
        return _store


class Store:
    """Registry of the shared objects and owners of one process; flushes them when it exits."""

    def __init__(self, node: Runtime) -> None:
        self.node = node
        self._lock = threading.RLock()
        self._own: dict[int, OwnedObject] = {}
        # targets served by the run's endpoint; auth domains have endpoints of their own
        self._served: set[int] = set()
        self._remotes: dict[tuple[str, int], RemoteObject] = {}
        self._owners: dict[str, Owner] = {}
        # URL by which an owner was reached, beside those that it listens at
        self._routes: dict[str, str] = {}
        self._auth_domains: AuthDomains | None = None
        # retired, while their last messages may still be on their way
        self._retiring: set[Owner] = set()
        #: copies of other processes' values without a handle in this process
        self.unused = UnusedCopies(backing.available)
        self._background: SerialExecutor | None = None
        # the last action submitted to it
        self._last_action: Callable[[], Any] | None = None
        # references in items of pipes that nobody has received yet, by the descriptors of receipts
        self._receipts: dict[int, list[Reference]] = {}
        self._notes: Notes | None = None
        self._has_room = True
        self._changed = threading.Event()
        #: True once the process exits
        self.is_closing = False
        # True once no background action is accepted
        self._is_over = False
        # made now: finalizers use it, and cannot make it
        self._reactor = node.reactor

    # -- the process, for objects

    @property
    def ident(self) -> str:
        """Identity of the process within the run."""
        return self.node.ident

    @property
    def host(self) -> str:
        """Name of the host."""
        return self.node.hello.host

    @functools.cached_property
    def is_one_host(self) -> bool:
        """True where all processes of the run are on this host, and may use what its kernel has for them."""
        node = self.node
        if not (node.config.kernel_objects and node.info.capabilities.same_host):
            return False
        # over TLS, where that was asked for, goes everything
        return all(url.startswith(SCHEME) for url in node.endpoint.urls)

    @property
    def has_descriptors(self) -> bool:
        """True where processes of the run send each other descriptors: all are on this host, which is Linux."""
        return hasattr(os, "memfd_create") and self.is_one_host

    def is_near(self, peer: Peer, auth_domain: str | None = None) -> bool:
        """True for a process of this host, and of this run or an auth domain: it may have descriptors."""
        host = None if peer.hello is None else peer.hello.host
        return peer.auth_domain in (None, auth_domain) and host == self.host

    def is_related(self, ident: str) -> bool:
        """True for the process that started this one, and those that this one started.

        A parent is told how its children end; and should it end itself, they do not live for long.
        """
        return ident == self.node.parent_ident or self.child(ident) is not None

    def child(self, ident: str) -> tuple[Child, int] | None:
        """The job with a process of an identity, and its index there, if this process started it."""
        return self.node.child_of(ident)

    def leave_will(
        self, urls: Sequence[str], target: int, head: bytes, then: Callable[[], object]
    ) -> None:
        """Have the parent send ``head`` and this process's notes to an object, should this process fail.

        See :func:`~fiber._launch.wills.leave_will`. Nothing happens in a process without a parent.
        """
        link = self.node.parent_link
        if link is not None:
            leave_will(self.client(link.url), urls, target, head, then)

    @property
    def notes(self) -> Notes | None:
        """Notes of this process for its parent, if it has one; None where there is no room for them."""
        with self._lock:
            if self._notes is None and self._has_room:
                try:
                    self._notes = Notes(self.node.directory if self.node.parent_ident else None)
                except OSError:
                    self._has_room = False
            return self._notes

    @property
    def timing(self) -> Timing:
        """Durations of the run."""
        return self.node.timing

    @property
    def auth_domains(self) -> AuthDomains:
        """The auth domains that this process takes part in."""
        with self._lock:
            if self._auth_domains is None:
                self._auth_domains = AuthDomains(self.node)
            return self._auth_domains

    def client(self, url: str) -> Client:
        """Client connected to another process."""
        return self.auth_domains.client(url) if auth_domain_of(url) else self.node.client(url)

    def best(self, urls: Sequence[str]) -> Sequence[str]:
        """An owner's URLs in the order in which this process dials them."""
        return self.node.router.rank(urls)

    def call_soon(self, action: Callable[[], Any]) -> None:
        """Run an action on the handler thread; takes no lock."""
        self._reactor.call_soon(action)

    def call_later(self, delay: float, action: Callable[[], Any]) -> None:
        """Run an action on the handler thread after a delay in seconds."""
        self._reactor.call_later(delay, action)

    def new_page(self) -> progress.ProgressPage | None:
        """A progress page for readers; None where this host has no folder of the run."""
        try:
            return progress.ProgressPage(self.node.directory, self.ident)
        except OSError:
            return None

    def page(self, peer: Peer, name: bytes, tag: bytes) -> memoryview | None:
        """Progress page of another process's readers; None if it cannot be mapped."""
        pages: dict[bytes, memoryview | None] = peer.state.setdefault(_PAGES, {})  # type: ignore[assignment] # ours alone
        if name not in pages:
            pid = peer.hello.pid if peer.hello is not None else 0
            where = Location(name.decode(errors="replace"), pid, progress.PAGE_SIZE, tag)
            pages[name] = progress.open_page(where, self.node.directory)
        return pages[name]

    # -- own objects

    def export(
        self, shared: OwnedObject, kind: Kind, maxsize: int, auth_domain: str | None = None
    ) -> Address:
        """Serve an object to an auth domain, or to this run if None; its address there."""
        endpoint = self.node.endpoint if auth_domain is None else None
        with self._lock:
            if not shared.target:
                shared.target = self.node.new_target()
                self._own[shared.target] = shared
        if endpoint is None:
            assert auth_domain is not None
            urls = self.auth_domains.serve(auth_domain, shared.target, shared)
            return Address(self.auth_domains.ident, urls, shared.target, kind, maxsize)
        self._served.add(shared.target)
        endpoint.serve(shared.target, shared)
        return Address(self.ident, tuple(endpoint.urls), shared.target, kind, maxsize)

    def own(self, target: int) -> OwnedObject | None:
        """The object of this process with a target; None if it exists no more."""
        return self._own.get(target)

    def owned(self) -> list[OwnedObject]:
        """The objects of this process."""
        return list(self._own.values())

    def forget(self, shared: OwnedObject) -> None:
        """Stop serving an object of this process that has no references left."""
        if self._own.pop(shared.target, None) is not None:
            if shared.target in self._served:
                self._served.remove(shared.target)
                self.node.endpoint.withdraw(shared.target)
            if self._auth_domains is not None:
                self._auth_domains.withdraw(shared.target)

    # -- objects of others

    def hold(self, address: Address, end: int, reference_id: int) -> OwnedObject | RemoteObject:
        """Hold the object at an address for a new handle.

        An unreachable owner raises only when the object is used.

        Raises:
            PeerLostError: it belonged to this process and exists no more.
        """
        fetching = "pipe.end" if address.kind in SOCKETS else "descriptors"
        is_fetched = address.kind in SOCKETS or address.kind is Kind.DESCRIPTOR
        if is_fetched and not self._is_own(address.ident):
            # nothing in common with its process but the kernel's object
            fetch = load_object(f"fiber._objects.{fetching}:fetched")
            with self._lock:
                address, owner = self._reached(address)
            shared: OwnedObject = fetch(self, owner, address, reference_id)
            shared.hold(end)
            return shared
        while True:
            found = self._resolve(address)
            if found.hold(end, reference_id):
                return found

    def _resolve(self, address: Address) -> OwnedObject | RemoteObject:
        if self._is_own(address.ident):
            found = self._own.get(address.target)
            if found is None or found.kind is not address.kind:
                msg = f"the {address.shape.name} no longer exists; its last holder let it go"
                raise PeerLostError(msg)
            return found
        with self._lock:
            key = (address.ident, address.target)
            remote = self._remotes.get(key)
            if remote is None or remote.is_lost:
                address, owner = self._reached(address)
                remote = self._remotes[key] = remote_class(address.kind)(self, address, owner)
            return remote

    def add_route(self, ident: str, url: str) -> None:
        """Note a URL by which an owner was reached, which its addresses may lack."""
        with self._lock:
            self._routes[ident] = url

    def close_client_soon(self, ident: str, url: str) -> None:
        """Close the client of an auth domain's URL soon, unless an object of its owner is used."""
        self.call_later(self.timing.idle, functools.partial(self._close_client, ident, url))

    def _close_client(self, ident: str, url: str) -> None:
        with self._lock:
            # an owner's client is closed when the owner is retired
            clients = [] if ident in self._owners else self.auth_domains.release((url,))
        for client in clients:
            client.close()

    def sync(self, ident: str) -> None:
        """Wait until all messages to an owner have arrived; nothing for an unknown one."""
        with self._lock:
            owner = self._owners.get(ident)
        if owner is not None:
            owner.sync()

    def _reached(self, address: Address) -> tuple[Address, Owner]:
        """With the lock held: the address, the noted URL of its owner in front, and the connection.

        Raises:
            AuthenticationError: it is of an auth domain whose authkey this process does not know.
        """
        if address.auth_domain is not None:
            # raises where the user can set the authkey
            self.auth_domains.get(address.auth_domain)
        route = self._routes.get(address.ident)
        if route is not None and route not in address.urls:
            address = values.evolve(address, urls=(route, *address.urls))
        return address, self._owner(address.ident, address.urls)

    def _is_own(self, ident: str) -> bool:
        return ident == self.ident or (
            self._auth_domains is not None and ident == self._auth_domains.ident
        )

    def _owner(self, ident: str, urls: tuple[str, ...]) -> Owner:
        owner = self._owners.get(ident)
        if owner is None or owner.is_lost:
            if owner is not None:
                # its loss may not have been noted by the handler thread yet
                self.call_soon(functools.partial(self._fail, owner, self._remove_remotes_of(owner)))
            owner = self._owners[ident] = Owner(self, ident, urls)
        return owner

    def _remove_remotes_of(self, owner: Owner) -> list[RemoteObject]:
        """Remove the objects of a lost owner from the registry."""
        keys = [key for key, remote in self._remotes.items() if remote.owner is owner]
        return [self._remotes.pop(key) for key in keys]

    @staticmethod
    def _fail(owner: Owner, lost: list[RemoteObject]) -> None:
        for remote in lost:
            remote.fail(owner.loss_error(remote.shape.name))
        owner.retire()

    def forget_remote(self, remote: RemoteObject) -> None:
        """Remove an object of another process that has no handle in this one."""
        with self._lock:
            key = (remote.address.ident, remote.target)
            if self._remotes.get(key) is not remote:
                return
            del self._remotes[key]
            owner = self._owners.get(remote.address.ident)
            if owner is not None:
                owner.forget(remote.target)
        if owner is not None:
            self.retire_soon(owner)

    def watch(self, owner: Owner, client: Client) -> None:
        """Fail the objects of an owner once its client is lost."""
        client.on_lost(functools.partial(self._owner_lost, owner))

    def retire_soon(self, owner: Owner) -> None:
        """Close the connection to an owner soon, unless an object of it is used."""
        self.call_later(self.timing.idle, functools.partial(self._retire, owner))

    def _retire(self, owner: Owner) -> None:
        """Close an owner without objects."""
        with self._lock:
            used = any(ident == owner.ident for ident, _ in self._remotes)
            if used or self._owners.get(owner.ident) is not owner:
                return
            del self._owners[owner.ident]
            clients = [] if self._auth_domains is None else self._auth_domains.release(owner.urls)
            if clients:
                self._retiring.add(owner)
        if clients:
            owner.submit(functools.partial(self._close_clients, owner, clients))
        owner.retire()

    def _close_clients(self, owner: Owner, clients: list[Client]) -> None:
        """On the owner's executor: close an owner's clients once all messages have arrived."""
        owner.sync(self.timing.farewell)
        for client in clients:
            client.close()
        with self._lock:
            self._retiring.discard(owner)

    def _owner_lost(self, owner: Owner) -> None:
        with self._lock:
            if self._owners.get(owner.ident) is not owner:
                return
            del self._owners[owner.ident]
            lost = self._remove_remotes_of(owner)
        self._fail(owner, lost)

    def await_receipt(self, descriptor: int, item: ItemWithReferences) -> None:
        """Void the references in an item once the end of a pipe says that nobody will have it.

        Args:
            descriptor: of the pipe, which brings a byte if somebody has it.
            item: the item.
        """
        self._receipts[descriptor] = item.references()
        self._reactor.add_reader(descriptor, functools.partial(self._on_receipt, descriptor))

    def _on_receipt(self, descriptor: int) -> None:
        references = self._receipts.pop(descriptor)
        self._reactor.remove_reader(descriptor)
        is_received = bool(os.read(descriptor, 1))
        os.close(descriptor)
        if not is_received:
            self.void_references(references)

    def void_references(self, references: Iterable[Reference]) -> None:
        """Drop the references in an item that will not be loaded."""
        for ident, urls, target, reference_id in references:
            if self._is_own(ident):
                shared = self._own.get(target)
                if shared is not None:
                    shared.void(reference_id)
            else:
                self.run_in_background(
                    functools.partial(
                        self._void_remote_reference, ident, urls, target, reference_id
                    )
                )

    def _void_remote_reference(
        self, ident: str, urls: tuple[str, ...], target: int, reference_id: int
    ) -> None:
        with self._lock:
            owner = self._owner(ident, urls)
        owner.void(target, reference_id)
        self.retire_soon(owner)

    def run_in_background(self, action: Callable[[], Any]) -> None:
        """Run an action that may take long, in order; ignored once the process has exited."""
        with self._lock:
            if self._is_over:
                return
            if self._background is None:
                self._background = SerialExecutor("fiber-background", expected=PeerLostError)
            self._background.submit(action)
            self._last_action = action
        self.call_later(self.timing.idle, functools.partial(self._end_background, action))

    def _end_background(self, last: Callable[[], Any]) -> None:
        """End the background thread if ``last`` is still the last action."""
        with self._lock:
            if self._background is not None and self._last_action is last:
                self._background.end()
                self._background = self._last_action = None

    # -- the end

    def drained(self) -> None:
        """Note that an object may be drained; wakes :meth:`close`."""
        self._changed.set()

    def close(self) -> None:
        """Flush all objects, wait for their readers, end all threads. Idempotent."""
        if self.is_closing:
            return
        remotes = list(self._remotes.values())
        for remote in remotes:
            remote.flush()
            remote.give_back()
            remote.on_exit(self.node.exit_code)
        for owner in list(self._owners.values()):
            owner.drain()
            if not owner.sync(self.timing.farewell):
                log.warning("fiber: process %s does not receive; what was put is lost", owner.ident)
        self.is_closing = True
        self._linger()
        self._close_owners()
        with self._lock:
            # losses that are noted this late are ignored
            self._is_over = True
            background, self._background = self._background, None
        if background is not None:
            background.close()
        # some were made by background actions
        self._close_owners()
        for block in self.unused.clear():
            block.discard()
        # where receipts come: one that comes meanwhile closes its descriptor itself
        self._reactor.call_and_wait(self._close_receipts)
        if self._auth_domains is not None:
            self._auth_domains.close()

    def _close_receipts(self) -> None:
        while self._receipts:
            descriptor, _ = self._receipts.popitem()
            self._reactor.remove_reader(descriptor)
            os.close(descriptor)

    def _close_owners(self) -> None:
        with self._lock:
            owners = [*self._owners.values(), *self._retiring]
        for owner in owners:
            owner.close()

    def _linger(self) -> None:
        own = list(self._own.values())
        waiting = [shared for shared in own if not shared.is_drained()]
        if not waiting:
            return
        deadline = Deadline(self.node.config.linger)
        for shared in waiting:
            shared.request_flush()
        while left := deadline.left:
            self._changed.clear()
            if all(shared.is_drained() for shared in waiting):
                return
            # in turns: nothing announces that the other end of a pipe is gone
            self._changed.wait(turn(left))
