"""Owner side of all shared objects: references, and the service for other processes."""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fiber._objects import protocol
from fiber._objects.address import ANY, LASTING, NO_REFERENCE, Address, Kind, shape_of
from fiber._objects.protocol import Op
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class References:
    """References to one object, counted for each end; from its own process, other processes, and pickles in flight.

    A pickle in flight refers to the object by a *reference id*. A reference with a number of uses ends
    when as many processes have attached with it, or when it is voided; one without lasts until it is
    voided. A process may attach before the reference is reported, which comes by another connection.
    """

    def __init__(self, ends: int) -> None:
        self._ends = range(ends)
        self._local = [0] * ends
        self._peers: defaultdict[int, set[Hashable]] = defaultdict(set)
        # by reference id: end, and uses left
        self._in_flight: dict[int, tuple[int, int]] = {}
        # reference ids that were used or voided before they were reported
        self._early: Counter[int] = Counter()
        self._void: set[int] = set()

    def hold(self, end: int) -> None:
        """Add a handle in the object's own process."""
        self._local[end] += 1

    def drop(self, end: int) -> None:
        """Remove a handle in the object's own process."""
        self._local[end] -= 1

    def attach(self, peer: Hashable, end: int, reference_id: int) -> None:
        """Another process has handles now."""
        if end in self._ends:
            self._peers[end].add(peer)
            self.use(reference_id)

    def detach(self, peer: Hashable, end: int) -> None:
        """Another process has no handles any more."""
        if end in self._ends:
            self._peers[end].discard(peer)

    def lose(self, peer: Hashable) -> None:
        """Another process is lost."""
        for peers in self._peers.values():
            peers.discard(peer)

    def issue(self, reference_id: int, end: int, uses: int) -> None:
        """Add the reference of a pickle in flight."""
        if end not in self._ends or reference_id in self._void:
            self._void.discard(reference_id)
            return
        early = self._early.pop(reference_id, 0)
        if uses in (ANY, LASTING):
            self._in_flight[reference_id] = (end, uses)
        elif early < uses:
            self._in_flight[reference_id] = (end, uses - early)

    def use(self, reference_id: int) -> None:
        """A pickle was loaded: use its reference once."""
        if reference_id == NO_REFERENCE:
            return
        found = self._in_flight.get(reference_id)
        if found is None:
            self._early[reference_id] += 1
        elif found[1] == 1:
            del self._in_flight[reference_id]
        elif found[1] not in (ANY, LASTING):
            self._in_flight[reference_id] = (found[0], found[1] - 1)

    def void(self, reference_id: int) -> None:
        """Remove the reference of a pickle that will not be loaded."""
        if self._in_flight.pop(reference_id, None) is None and not self._early.pop(reference_id, 0):
            self._void.add(reference_id)

    def is_held(self, end: int) -> bool:
        """True while an end has any reference."""
        return self.is_held_locally(end) or self.is_held_remotely(end)

    def is_held_locally(self, end: int) -> bool:
        """True while an end has a handle in the object's own process."""
        return self._local[end] > 0

    def is_held_remotely(self, end: int) -> bool:
        """True while an end has a reference from another process or a pickle in flight."""
        return bool(self._peers.get(end)) or any(e == end for e, _ in self._in_flight.values())

    def is_expected(self, end: int) -> bool:
        """True while another process has handles of an end, or will have."""
        return self.is_arriving(end) or bool(self._peers.get(end))

    def is_arriving(self, end: int) -> bool:
        """True while an end has a pickle in flight that will be loaded."""
        return any(e == end and uses != LASTING for e, uses in self._in_flight.values())

    def peers(self, end: int) -> set[Hashable]:
        """Other processes that have handles of an end."""
        return set(self._peers.get(end, ()))


class OwnedObject:
    """Base of the owner's sides of all kinds.

    ``lock`` guards all state; user threads and the handler thread hold it briefly.
    """

    def __init__(self, store: Store, kind: Kind, maxsize: int = 0) -> None:
        self.lock = threading.Lock()
        self.shape = shape_of(kind, maxsize)
        #: its kind
        self.kind = kind
        self._maxsize = maxsize
        self._store = store
        self._references = References(self.shape.ends)
        self._open_ends = set(range(self.shape.ends))
        #: number by which other processes address it; 0 until it is exported
        self.target = 0
        self._address: Address | None = None
        #: name of the auth domain that it was exported to; None for this run alone
        self.auth_domain: str | None = None

    @property
    def address(self) -> Address:
        """Address for processes of this run; exports the object."""
        if self._address is None:
            self._address = self._store.export(self, self.kind, self._maxsize)
        return self._address

    def address_in(self, auth_domain: str | None) -> Address:
        """Address for processes of an auth domain, of this run if None; exports the object."""
        if auth_domain is None:
            return self.address
        self.auth_domain = auth_domain
        return self._store.export(self, self.kind, self._maxsize, auth_domain)

    # -- references of this process

    def hold(self, end: int, reference_id: int = NO_REFERENCE) -> bool:
        """Count one more handle in this process, perhaps unpickled from a reference."""
        with self.lock:
            self._references.hold(end)
            self._references.use(reference_id)
            return True

    def drop(self, end: int) -> None:
        """Count a handle that was closed."""
        with self.lock:
            self._references.drop(end)
            if not self._references.is_held_locally(end):
                self._on_local_detach(end)
            self._review()

    def drop_soon(self, end: int) -> None:
        """Count a handle that was collected; callable from finalizers."""
        self._store.call_soon(functools.partial(self.drop, end))

    def issue(self, reference_id: int, end: int, uses: int) -> None:
        """Count the reference of a new pickle."""
        with self.lock:
            self._references.issue(reference_id, end, uses)

    def void(self, reference_id: int) -> None:
        """Void the reference of a pickle that will not be loaded; callable from finalizers."""
        self._store.call_soon(functools.partial(self._void, reference_id))

    def _void(self, reference_id: int) -> None:
        with self.lock:
            self._references.void(reference_id)
            self._review()

    def expect(self, peer: Peer, end: int) -> None:
        """Count a process that is about to load an end as its holder."""
        with self.lock:
            self._references.attach(peer, end, NO_REFERENCE)

    # -- the service

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take one message of another process."""
        if not len(message.body):
            msg = "a message about a shared object is empty"
            raise WireError(msg)
        op = message.body[0]
        with self.lock:
            if op == Op.ATTACH:
                seen = protocol.ATTACHED.pack(self._attach(peer, message))
                peer.send(Frame.REPLY, self.target, message.id, [seen])
            elif op == Op.DETACH:
                (_, end) = protocol.read(protocol.DETACH, message.body)
                self._on_detach(peer, end)
                self._references.detach(peer, end)
            elif op == Op.REFERENCE:
                _, end, reference_id, uses = protocol.read(protocol.REFERENCE, message.body)
                self._references.issue(reference_id, end, uses)
                return
            elif op == Op.VOID:
                self._references.void(protocol.read(protocol.VOID, message.body)[1])
            else:
                self._on_request(peer, message, op)
                return
            self._review()

    def on_peer_lost(self, peer: Peer) -> None:
        """Drop all references of a lost process."""
        with self.lock:
            for end in range(self.shape.ends):
                self._on_detach(peer, end)
            self._references.lose(peer)
            self._review()

    def _attach(self, peer: Peer, message: Message) -> bool:
        _, end, reference_id, slot, tag = protocol.read(protocol.ATTACH, message.body)
        self._references.attach(peer, end, reference_id)
        page = bytes(message.body[protocol.ATTACH.size :])
        return self._on_attach(peer, end, slot, tag, page)

    def _review(self) -> None:
        """Close the ends that have no references left."""
        for end in [e for e in self._open_ends if not self._references.is_held(e)]:
            self._open_ends.discard(end)
            self._on_end_closed(end)
        if not self._open_ends and self.target:
            self._store.forget(self)

    # -- for subclasses: the exit of the owner

    def request_flush(self) -> None:
        """Ask other processes to finish with it: this one is about to exit."""

    def is_drained(self) -> bool:
        """True where other processes have received all that it has for them."""
        return True

    # -- for subclasses; called with the lock held

    def _on_attach(self, peer: Peer, end: int, slot: int, tag: bytes, page: bytes) -> bool:
        """A process has handles of an end now; True where its progress page can be read."""
        return False

    def _on_detach(self, peer: Peer, end: int) -> None:
        """A process has no handle of an end any more."""

    def _on_local_detach(self, end: int) -> None:
        """This process has no handle of an end any more."""

    def _on_end_closed(self, end: int) -> None:
        """An end has no references left."""

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        """Handle a request that only this kind has."""
        msg = f"a {self.shape.name} is asked for operation {op}, which it does not have"
        raise WireError(msg)
