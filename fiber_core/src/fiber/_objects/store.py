"""The shared objects of one process: its own, and those of others that it uses.

What stands for an object of each kind in other processes than its owner's.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._base.serial_executor import SerialExecutor
from fiber._objects.address import Address, Kind, realm_of
from fiber._objects.auth_domain import Realms
from fiber._objects.blocks.copies import Unused
from fiber._objects.memory import backing
from fiber._objects.owned import Shared
from fiber._objects.owner import Owner
from fiber._objects.queue import progress
from fiber._objects.queue.channel import Channel
from fiber._objects.remote import Remote
from fiber._objects.waiting import Deadline
from fiber._runtime import runtime
from fiber._wire.endpoint import Peer
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.blocks.block import RemoteBlock
    from fiber._objects.remote import Remote
    from fiber._runtime.runtime import Runtime
    from fiber._wire.client import Client

# by name: a process that has no object of a kind does not import what it takes
_CLASSES = {
    Kind.QUEUE: ("fiber._objects.queue.remote_channel", "RemoteChannel"),
    Kind.PIPE: ("fiber._objects.queue.remote_channel", "RemoteChannel"),
    Kind.ONE_WAY: ("fiber._objects.queue.remote_channel", "RemoteChannel"),
    Kind.TASKS: ("fiber._objects.queue.tasks", "RemoteTasks"),
    Kind.LOCK: ("fiber._objects.sync.permits", "RemotePermits"),
    Kind.RLOCK: ("fiber._objects.sync.permits", "RemotePermits"),
    Kind.SEMAPHORE: ("fiber._objects.sync.permits", "RemotePermits"),
    Kind.MEMORY: ("fiber._objects.memory.block", "RemoteMemory"),
    Kind.CONDITION: ("fiber._objects.sync.condition", "RemoteCondition"),
    Kind.EVENT: ("fiber._objects.sync.event", "RemoteEvent"),
    Kind.BARRIER: ("fiber._objects.sync.barrier", "RemoteBarrier"),
    Kind.BLOCK: ("fiber._objects.blocks.block", "RemoteBlock"),
    Kind.STORAGE: ("fiber._objects.remote", "Remote"),
    Kind.REFERENT: ("fiber._objects.managed.remote_referent", "RemoteReferent"),
}


def remote_class(kind: Kind) -> type[Remote]:
    """The class whose instances stand for objects of a kind."""
    module, name = _CLASSES[kind]
    found: type[Remote] = getattr(importlib.import_module(module), name)
    return found


#: seconds after which an owner that is used no more is given up
_IDLE = 1.0
#: seconds that an ending process waits for an owner to take in what was put
_FAREWELL = 60.0
# where a peer's state has its pages; targets are not negative
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
    """Finds objects, and sees to it that nothing is lost when the process ends."""

    def __init__(self, node: Runtime) -> None:
        self.node = node
        self._lock = threading.RLock()
        self._own: dict[int, Shared] = {}
        # those that this run is served, by its endpoint; realms have endpoints of their own
        self._served: set[int] = set()
        self._remotes: dict[tuple[str, int], Remote] = {}
        self._owners: dict[str, Owner] = {}
        # where owners were reached, whatever they say of where they are
        self._ways: dict[str, str] = {}
        self._realms: Realms | None = None
        # given up, and what was said to them last may still be on its way
        self._parting: set[Owner] = set()
        #: values of others that no handle here uses now
        self.unused: Unused[RemoteBlock] = Unused(backing.available)
        self._errands: SerialExecutor | None = None
        # the last of them
        self._errand: Callable[[], Any] | None = None
        self._changed = threading.Event()
        #: True once the process ends
        self.is_closing = False
        # True once nothing new is begun
        self._is_over = False
        # finalizers need it, and cannot make it
        self._reactor = node.reactor

    # -- what objects need of the process

    @property
    def ident(self) -> str:
        """Identity of the process within the run."""
        return self.node.ident

    @property
    def host(self) -> str:
        """Name of the host."""
        return self.node.hello.host

    @property
    def realms(self) -> Realms:
        """Those of other programs that this process has to do with."""
        with self._lock:
            if self._realms is None:
                self._realms = Realms(self.node)
            return self._realms

    def client(self, url: str) -> Client:
        """The connection to another process."""
        return self.realms.client(url) if realm_of(url) else self.node.client(url)

    def best(self, urls: Sequence[str]) -> Sequence[str]:
        """An owner's addresses in the order in which they are tried from here."""
        return self.node.router.best(urls)

    def call_soon(self, action: Callable[[], Any]) -> None:
        """Have something done on the handler thread; takes no lock."""
        self._reactor.call_soon(action)

    def call_later(self, delay: float, action: Callable[[], Any]) -> None:
        """Have something done on the handler thread in a moment."""
        self._reactor.call_later(delay, action)

    def new_page(self) -> progress.Page | None:
        """A page for the progress of readers; None where this host has no folder of the run."""
        try:
            return progress.Page(self.node.directory, self.ident)
        except OSError:
            return None

    def page(self, peer: Peer, name: bytes, mark: bytes) -> memoryview | None:
        """The page of another process's readers."""
        pages: dict[bytes, memoryview | None] = peer.state.setdefault(_PAGES, {})  # type: ignore[assignment] # ours alone
        if name not in pages:
            pid = peer.hello.pid if peer.hello is not None else 0
            where = progress.place(name.decode(errors="replace"), pid, self.node.directory)
            pages[name] = None if where is None else progress.open_page(where, mark)
        return pages[name]

    # -- own objects

    def channel(self, kind: Kind, maxsize: int = 0) -> Channel:
        """A new queue or pipe."""
        return Channel(self, kind, maxsize)

    def export(self, shared: Shared, kind: Kind, maxsize: int, realm: str | None = None) -> Address:
        """Have other processes served, of a realm or of this run; what they are told."""
        endpoint = self.node.endpoint if realm is None else None
        with self._lock:
            if not shared.target:
                shared.target = self.node.new_target()
                self._own[shared.target] = shared
        if endpoint is None:
            assert realm is not None
            urls = self.realms.serve(realm, shared.target, shared)
            return Address(self.realms.ident, urls, shared.target, kind, maxsize)
        self._served.add(shared.target)
        endpoint.serve(shared.target, shared)
        return Address(self.ident, tuple(endpoint.urls), shared.target, kind, maxsize)

    def forget(self, shared: Shared) -> None:
        """An own object has no holder any more."""
        if self._own.pop(shared.target, None) is not None:
            if shared.target in self._served:
                self._served.remove(shared.target)
                self.node.endpoint.withdraw(shared.target)
            if self._realms is not None:
                self._realms.withdraw(shared.target)

    # -- objects of others

    def take(self, address: Address, end: int, ticket: int) -> Shared | Remote:
        """The object at an address, held for a new handle.

        An owner that cannot be reached shows when the object is used.

        Raises:
            PeerLostError: it was ours, and exists no more.
        """
        while True:
            found = self._resolve(address)
            if found.hold(end, ticket):
                return found

    def _resolve(self, address: Address) -> Shared | Remote:
        if self._is_own(address.ident):
            found = self._own.get(address.target)
            if found is None or found.kind is not address.kind:
                msg = f"the {address.shape.name} no longer exists; its last holder let it go"
                raise PeerLostError(msg)
            return found
        if address.realm is not None:
            # that it is known is seen here, where the user can do something about it
            self.realms.get(address.realm)
        with self._lock:
            key = (address.ident, address.target)
            remote = self._remotes.get(key)
            if remote is None or remote.is_lost:
                address = self._told(address)
                owner = self._owner(address.ident, address.urls)
                remote = self._remotes[key] = remote_class(address.kind)(self, address, owner)
            return remote

    def meet(self, ident: str, url: str) -> None:
        """An owner was reached by this way, which others may not be told of."""
        with self._lock:
            self._ways[ident] = url

    def part_soon(self, ident: str, place: str) -> None:
        """Close the connection to a place in a moment, unless an object there is used by then."""
        self.call_later(_IDLE, functools.partial(self._part, ident, place))

    def _part(self, ident: str, place: str) -> None:
        with self._lock:
            # of an owner that is used no more it is closed when that is given up
            clients = [] if ident in self._owners else self.realms.release((place,))
        for client in clients:
            client.close()

    def sync(self, ident: str) -> None:
        """Wait until all that was said to an owner, if it is one, has arrived."""
        with self._lock:
            owner = self._owners.get(ident)
        if owner is not None:
            owner.sync()

    def _told(self, address: Address) -> Address:
        """An address with the way by which we reached its owner, if by another."""
        way = self._ways.get(address.ident)
        if way is None or way in address.urls:
            return address
        return values.evolve(address, urls=(way, *address.urls))

    def _is_own(self, ident: str) -> bool:
        return ident == self.ident or (self._realms is not None and ident == self._realms.ident)

    def _owner(self, ident: str, urls: tuple[str, ...]) -> Owner:
        owner = self._owners.get(ident)
        if owner is None or owner.is_lost:
            if owner is not None:
                # perhaps before the handler thread has noted its loss
                self.call_soon(functools.partial(self._fail, owner, self._part_with(owner)))
            owner = self._owners[ident] = Owner(self, ident, urls)
        return owner

    def _part_with(self, owner: Owner) -> list[Remote]:
        """The objects of a lost owner, which are found no more."""
        keys = [key for key, remote in self._remotes.items() if remote.owner is owner]
        return [self._remotes.pop(key) for key in keys]

    @staticmethod
    def _fail(owner: Owner, lost: list[Remote]) -> None:
        for remote in lost:
            remote.fail(owner.lost(remote.shape.name))
        owner.retire()

    def forget_remote(self, remote: Remote) -> None:
        """An object of another process has no handle here any more."""
        with self._lock:
            key = (remote.address.ident, remote.target)
            if self._remotes.get(key) is not remote:
                return
            del self._remotes[key]
            owner = self._owners.get(remote.address.ident)
            if owner is not None:
                owner.forget(remote.target)
        if owner is not None:
            self.call_later(_IDLE, functools.partial(self._retire, owner))

    def watch(self, owner: Owner, client: Client) -> None:
        """Have the objects of an owner hear of its loss."""
        client.on_lost(functools.partial(self._owner_lost, owner))

    def _retire(self, owner: Owner) -> None:
        """Give up an owner that is used no more."""
        with self._lock:
            used = any(ident == owner.ident for ident, _ in self._remotes)
            if used or self._owners.get(owner.ident) is not owner:
                return
            del self._owners[owner.ident]
            clients = [] if self._realms is None else self._realms.release(owner.urls)
            if clients:
                self._parting.add(owner)
        if clients:
            owner.soon(functools.partial(self._leave, owner, clients))
        owner.retire()

    def _leave(self, owner: Owner, clients: list[Client]) -> None:
        """On the courier: close the connections to an owner once all that was said has arrived."""
        owner.sync(_FAREWELL)
        for client in clients:
            client.close()
        with self._lock:
            self._parting.discard(owner)

    def _owner_lost(self, owner: Owner) -> None:
        with self._lock:
            if self._owners.get(owner.ident) is not owner:
                return
            del self._owners[owner.ident]
            lost = self._part_with(owner)
        self._fail(owner, lost)

    def void_all(self, tickets: Iterable[tuple[str, tuple[str, ...], int, int]]) -> None:
        """References in an item that nobody will load."""
        for ident, urls, target, ticket in tickets:
            if self._is_own(ident):
                shared = self._own.get(target)
                if shared is not None:
                    shared.void(ticket)
            else:
                self.errand(functools.partial(self._void_elsewhere, ident, urls, target, ticket))

    def _void_elsewhere(self, ident: str, urls: tuple[str, ...], target: int, ticket: int) -> None:
        with self._lock:
            owner = self._owner(ident, urls)
        owner.void(target, ticket)
        self.call_later(_IDLE, functools.partial(self._retire, owner))

    def errand(self, action: Callable[[], Any]) -> None:
        """Have something done that may take long; not any more once the process has ended."""
        with self._lock:
            if self._is_over:
                return
            if self._errands is None:
                self._errands = SerialExecutor("fiber-errands", expected=PeerLostError)
            self._errands.submit(action)
            self._errand = action
        self.call_later(_IDLE, functools.partial(self._rest, action))

    def _rest(self, last: Callable[[], Any]) -> None:
        """End the thread for errands where there was none after ``last``."""
        with self._lock:
            if self._errands is not None and self._errand is last:
                self._errands.end()
                self._errands = self._errand = None

    # -- the end

    def drained(self) -> None:
        """Perhaps the last item was taken; for :meth:`close`."""
        self._changed.set()

    def close(self) -> None:
        """Send what was put, let readers have what is here, end what was started. Idempotent."""
        if self.is_closing:
            return
        remotes = list(self._remotes.values())
        for remote in remotes:
            remote.flush()
            remote.give_back()
            remote.ending(self.node.exit_code)
        for owner in list(self._owners.values()):
            owner.drain()
            if not owner.sync(_FAREWELL):
                log.warning("fiber: process %s takes nothing in; what was put is lost", owner.ident)
        self.is_closing = True
        self._linger()
        self._close_owners()
        with self._lock:
            # a death that is heard of this late is nothing to us
            self._is_over = True
            errands, self._errands = self._errands, None
        if errands is not None:
            errands.close()
        # some were made on an errand
        self._close_owners()
        for block in self.unused.clear():
            block.let_go()
        if self._realms is not None:
            self._realms.close()

    def _close_owners(self) -> None:
        with self._lock:
            owners = [*self._owners.values(), *self._parting]
        for owner in owners:
            owner.close()

    def _linger(self) -> None:
        own = list(self._own.values())
        waiting = [shared for shared in own if not shared.is_drained()]
        if not waiting:
            return
        deadline = Deadline(self.node.config.linger)
        for shared in waiting:
            shared.hurry()
        while left := deadline.left:
            self._changed.clear()
            if all(shared.is_drained() for shared in waiting):
                return
            self._changed.wait(left)
