"""Owner side of all shared objects: references, and the service for other processes."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from fiber._objects import protocol
from fiber._objects.address import Address, Kind, shape_of
from fiber._objects.protocol import Op
from fiber._objects.references import NO_REFERENCE, References
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


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
