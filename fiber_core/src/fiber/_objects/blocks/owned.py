"""A block in the process that made it: tells where it is, and hands it out in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fiber._objects.address import Kind
from fiber._objects.blocks import protocol
from fiber._objects.blocks.contents import write
from fiber._objects.blocks.copies import Answer, Copies
from fiber._objects.blocks.protocol import MOST, Op, Word
from fiber._objects.blocks.reading import Reading
from fiber._objects.memory import sealed
from fiber._objects.memory.backing import Place
from fiber._objects.memory.sealed import Sealed
from fiber._objects.owned import Shared
from fiber._objects.protocol import read
from fiber._wire import codec
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class Block(Shared):
    """A block.

    Raises:
        pickle.PicklingError: the value cannot be pickled.
        OSError: there is no room for it.
    """

    def __init__(self, store: Store, value: Any) -> None:
        super().__init__(store, Kind.BLOCK)
        self.reading = Reading(self)
        self._releases: list[Callable[[], Any]] = []
        self._copies: Copies[Peer] = Copies()
        self._hurries = False
        node = store.node
        try:
            # references in the value live as long as the block
            with codec.carrying(self):
                segments = write(value)
            self._sealed: Sealed | None = sealed.seal(segments, lambda: node.directory, store.ident)
        except BaseException:
            self._release()
            raise
        #: where it is on this host
        self.place: Place = self._sealed.place
        self._view = self._sealed.view()

    def on_release(self, action: Callable[[], Any]) -> None:
        """Have ``action`` called when nobody holds it any more."""
        self._releases.append(action)

    def body(self) -> memoryview:
        """Its bytes; for those who hold it."""
        return self._view

    # -- the end of the owner

    def hurry(self) -> None:
        """Have those who did not get it yet do so."""
        with self.lock:
            self._hurries = True
            for peer in self._references.peers(0):
                assert isinstance(peer, Peer)
                if not self._copies.has(peer):
                    self._hurry(peer)

    def is_drained(self) -> bool:
        """True where whoever holds it has it."""
        with self.lock:
            peers = self._references.peers(0)
            has_all = all(isinstance(peer, Peer) and self._copies.has(peer) for peer in peers)
            return has_all and not self._references.is_coming(0)

    # -- the service, with the lock held

    def _arrive(self, peer: Peer, end: int, slot: int, mark: bytes, page: bytes) -> bool:
        if self._hurries:
            self._hurry(peer)
        return False

    def _hurry(self, peer: Peer) -> None:
        peer.send(Frame.CAST, self.target, 0, [protocol.WORD.pack(Word.HURRY)])

    def on_peer_lost(self, peer: Peer) -> None:
        """Another process is gone, and its copy with it."""
        with self.lock:
            self._tell(self._copies.gone(peer))
        super().on_peer_lost(peer)

    def _leave(self, peer: Peer, end: int) -> None:
        self._tell(self._copies.unused(peer))

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        if op == Op.LOCATE and message.kind is Frame.CALL:
            _, alone = read(protocol.LOCATE, message.body)
            self._tell(self._copies.ask(_host(peer), peer, message.id, alone=bool(alone)))
        elif op == Op.FETCH and message.kind is Frame.CALL:
            self._give(peer, message)
        elif op == Op.HAS:
            place = protocol.read_has(message.body)
            self._tell(self._copies.came(_host(peer), peer, place))
            self._store.drained()
        elif op == Op.GIVE_UP:
            self._tell(self._copies.gone(peer))
        else:
            super()._answer(peer, message, op)

    def _give(self, peer: Peer, message: Message) -> None:
        _, begin, size = read(protocol.FETCH, message.body)
        if size > MOST or begin + size > len(self._view):
            msg = f"{size} bytes from {begin} on are asked of a block of {len(self._view)}"
            raise WireError(msg)
        piece = self._view[begin : begin + size]
        digest = protocol.digest(begin, piece)
        peer.send(Frame.REPLY, self.target, message.id, [digest, piece])

    def _tell(self, answers: Iterable[Answer[Peer]]) -> None:
        for answer in answers:
            body = b"" if answer.place is None else answer.place.packed()
            answer.who.send(Frame.REPLY, self.target, answer.number, [body])

    def _review(self) -> None:
        super()._review()
        if self._hurries:
            self._store.drained()

    def _end_closed(self, end: int) -> None:
        found, self._sealed = self._sealed, None
        if found is not None:
            found.close()
            self._view = memoryview(b"")
        for peer in self._copies.holders():
            peer.send(Frame.CAST, self.target, 0, [protocol.WORD.pack(Word.FREED)])
        self._release()

    def _release(self) -> None:
        releases, self._releases = self._releases, []
        for action in releases:
            action()


def _host(peer: Peer) -> str:
    return peer.hello.host if peer.hello is not None else ""
