"""An object at its owner: its references, and the service that answers other processes."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from fiber._objects import protocol
from fiber._objects.address import Address, Kind, shape_of
from fiber._objects.protocol import Op
from fiber._objects.references import NO_TICKET, References
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class Shared:
    """What every kind of object has; a subclass answers what its kind is for.

    All state is guarded by ``lock``, which is held for short only, also by the handler thread.
    """

    def __init__(self, store: Store, kind: Kind, maxsize: int = 0) -> None:
        self.lock = threading.Lock()
        self.shape = shape_of(kind, maxsize)
        #: what it is
        self.kind = kind
        self._maxsize = maxsize
        self._store = store
        self._references = References(self.shape.ends)
        self._open_ends = set(range(self.shape.ends))
        #: number by which other processes address it, 0 until one may
        self.target = 0
        self._address: Address | None = None
        #: the realm that it was shown to, which reads what is put here; None for this run alone
        self.realm: str | None = None

    @property
    def address(self) -> Address:
        """What others are told; from now on the object answers them."""
        if self._address is None:
            self._address = self._store.export(self, self.kind, self._maxsize)
        return self._address

    def address_in(self, realm: str | None) -> Address:
        """What processes of a realm are told, of the run where it is None."""
        if realm is None:
            return self.address
        self.realm = realm
        return self._store.export(self, self.kind, self._maxsize, realm)

    # -- references of this process

    def hold(self, end: int, ticket: int = NO_TICKET) -> bool:
        """There is one more handle here, perhaps loaded from a pickle."""
        with self.lock:
            self._references.hold(end)
            self._references.use(ticket)
            return True

    def drop(self, end: int) -> None:
        """A handle here was closed."""
        with self.lock:
            self._references.drop(end)
            if not self._references.is_held_here(end):
                self._left(end)
            self._review()

    def drop_soon(self, end: int) -> None:
        """A handle here was collected; callable whenever the collector runs."""
        self._store.call_soon(functools.partial(self.drop, end))

    def issue(self, ticket: int, end: int, uses: int) -> None:
        """A pickle of an end is on its way."""
        with self.lock:
            self._references.issue(ticket, end, uses)

    def void(self, ticket: int) -> None:
        """A pickle of an end is loaded no more; callable whenever the collector runs."""
        self._store.call_soon(functools.partial(self._void, ticket))

    def _void(self, ticket: int) -> None:
        with self.lock:
            self._references.void(ticket)
            self._review()

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
                self._leave(peer, end)
                self._references.detach(peer, end)
            elif op == Op.TICKET:
                _, end, ticket, uses = protocol.read(protocol.TICKET, message.body)
                self._references.issue(ticket, end, uses)
                return
            elif op == Op.VOID:
                self._references.void(protocol.read(protocol.VOID, message.body)[1])
            else:
                self._answer(peer, message, op)
                return
            self._review()

    def on_peer_lost(self, peer: Peer) -> None:
        """Another process is gone, and with it all that it held."""
        with self.lock:
            for end in range(self.shape.ends):
                self._leave(peer, end)
            self._references.lose(peer)
            self._review()

    def _attach(self, peer: Peer, message: Message) -> bool:
        _, end, ticket, slot, mark = protocol.read(protocol.ATTACH, message.body)
        self._references.attach(peer, end, ticket)
        page = bytes(message.body[protocol.ATTACH.size :])
        return self._arrive(peer, end, slot, mark, page)

    def _review(self) -> None:
        """Close what nobody holds any more."""
        for end in [e for e in self._open_ends if not self._references.is_held(e)]:
            self._open_ends.discard(end)
            self._end_closed(end)
        if not self._open_ends and self.target:
            self._store.forget(self)

    # -- for subclasses: the end of the owner

    def hurry(self) -> None:
        """Have others finish what they do with it: the process is about to end."""

    def is_drained(self) -> bool:
        """True where others have got from it all that there is to get."""
        return True

    # -- for subclasses; called with the lock held

    def _arrive(self, peer: Peer, end: int, slot: int, mark: bytes, page: bytes) -> bool:
        """A process holds an end now; True where its progress can be seen."""
        return False

    def _leave(self, peer: Peer, end: int) -> None:
        """A process holds an end no more."""

    def _left(self, end: int) -> None:
        """This process holds an end no more."""

    def _end_closed(self, end: int) -> None:
        """Nobody holds an end any more."""

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        """Another process wants something of the object."""
        msg = f"a {self.shape.name} is asked for operation {op}, which it does not have"
        raise WireError(msg)
