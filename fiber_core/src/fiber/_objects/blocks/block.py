"""A block of another process: mapped where it is on this host, else fetched once a host.

What is here stays when the last handle goes, see :mod:`fiber._objects.blocks.copies`.

What processes tell each other about a block that nobody changes; layouts only.

``LOCATE`` and ``FETCH`` are calls. ``LOCATE`` is answered with a place on the asker's host where the
block is, or with nothing: then the asker is to ``FETCH`` it, and nobody else on its host is told to
until it says where it ``HAS`` it, gives it up or is gone. A ``FETCH`` is answered with a digest of
the bytes, which says where in the block they are, and the bytes. A holder that maps the block says
where it ``HAS`` it. It may keep that when it holds the block no more, and says ``GIVE_UP`` when it
has it no more; when nobody holds the block, all who have it are told that it is ``FREED``.

A block in the process that made it: tells where it is, and hands it out in pieces.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fiber._objects.address import Kind
from fiber._objects.blocks.contents import Reading, write
from fiber._objects.blocks.copies import Answer, Copies
from fiber._objects.memory import sealed
from fiber._objects.memory.backing import HEAD, Place
from fiber._objects.memory.sealed import Draft, Sealed
from fiber._objects.owned import Shared
from fiber._objects.protocol import read
from fiber._objects.remote import NO_PAGE, Remote
from fiber._wire import codec
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Buffer, Message
from fiber._wire.frames import Kind as Frame
from fiber.exceptions import PeerLostError, TransportError, WireError

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.address import Address
    from fiber._objects.owner import Owner
    from fiber._objects.store import Store
    from fiber._wire.client import Pending


class Op(enum.IntEnum):
    """What a holder says to the owner."""

    LOCATE = 144
    FETCH = 145
    HAS = 146
    GIVE_UP = 147


class Word(enum.IntEnum):
    """What the owner says to a holder."""

    #: get the block now: the owner is about to end
    HURRY = 148
    #: nobody holds the block any more: let go of the copy
    FREED = 149


#: bytes of one answer at most, so that the owner never does much at once
MOST = 2**20
#: bytes of a digest
DIGEST = 32

#: 1 where what is on the host cannot be mapped by the asker
LOCATE = struct.Struct("<BB")
#: where, how many
FETCH = struct.Struct("<BQQ")
GIVE_UP = struct.Struct("<B")
WORD = struct.Struct("<B")
_HAS = struct.Struct("<B")
_SPAN = struct.Struct("<QQ")


def has(place: Place) -> bytes:
    """A HAS message."""
    return _HAS.pack(Op.HAS) + place.packed()


def read_has(body: Buffer) -> Place:
    """The place of a HAS message.

    Raises:
        WireError: it makes no sense.
    """
    return Place.unpack(memoryview(body)[_HAS.size :])


def piece_digest(begin: int, data: Buffer) -> bytes:
    """What tells that bytes are those of the block from ``begin`` on."""
    return hashlib.sha256(_SPAN.pack(begin, len(data)) + data).digest()


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
        peer.send(Frame.CAST, self.target, 0, [WORD.pack(Word.HURRY)])

    def on_peer_lost(self, peer: Peer) -> None:
        """Another process is gone, and its copy with it."""
        with self.lock:
            self._tell(self._copies.gone(peer))
        super().on_peer_lost(peer)

    def _leave(self, peer: Peer, end: int) -> None:
        self._tell(self._copies.unused(peer))

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        if op == Op.LOCATE and message.kind is Frame.CALL:
            _, alone = read(LOCATE, message.body)
            self._tell(self._copies.ask(_host(peer), peer, message.id, alone=bool(alone)))
        elif op == Op.FETCH and message.kind is Frame.CALL:
            self._give(peer, message)
        elif op == Op.HAS:
            place = read_has(message.body)
            self._tell(self._copies.came(_host(peer), peer, place))
            self._store.drained()
        elif op == Op.GIVE_UP:
            self._tell(self._copies.gone(peer))
        else:
            super()._answer(peer, message, op)

    def _give(self, peer: Peer, message: Message) -> None:
        _, begin, size = read(FETCH, message.body)
        if size > MOST or begin + size > len(self._view):
            msg = f"{size} bytes from {begin} on are asked of a block of {len(self._view)}"
            raise WireError(msg)
        piece = self._view[begin : begin + size]
        digest = piece_digest(begin, piece)
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
            peer.send(Frame.CAST, self.target, 0, [WORD.pack(Word.FREED)])
        self._release()

    def _release(self) -> None:
        releases, self._releases = self._releases, []
        for action in releases:
            action()


def _host(peer: Peer) -> str:
    return peer.hello.host if peer.hello is not None else ""


# messages on their way at most
_WINDOW = 8


class RemoteBlock(Remote):
    """One for each block and process."""

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self.reading = Reading(self, keeps=True)
        # held while it is fetched
        self._getting = threading.Lock()
        self._sealed: Sealed | None = None
        self._size = 0
        # its owner has let go of it
        self._is_freed = False

    def meet(self, place: Place) -> None:
        """Map it now if it is on this host, so that what becomes of its owner is nothing to us."""
        self._size = place.size - HEAD
        if self.is_mappable:
            with self._getting:
                if self._sealed is None:
                    self._map(place)

    def body(self) -> memoryview:
        """Its bytes.

        Raises:
            PeerLostError: the process that it lives in is gone, or the block is.
            OSError: there is no room for it.
        """
        with self._getting:
            if self._sealed is None:
                try:
                    self._get()
                except WireError:
                    raise
                except TransportError as error:
                    raise self.loss(error) from error
            assert self._sealed is not None
            return self._sealed.view()

    @property
    def is_mappable(self) -> bool:
        """True where its owner's memory is this host's, and is to be used as such."""
        return self.is_near and self._owner.is_local

    def evict(self) -> None:
        """Have no copy of it here any more, if no handle uses it: others need the room."""
        with self._lock:
            if self._attached or self._done:
                return
            if not self._is_freed:
                # before another object here takes this one's place; a lost owner needs no word
                with contextlib.suppress(PeerLostError):
                    self.cast([GIVE_UP.pack(Op.GIVE_UP)])
            self._forget()
        self.let_go()

    def let_go(self) -> None:
        """Close the copy; with no lock held, as what a value does when it goes is the user's."""
        self._store.unused.remove(self)
        with self._getting:
            found, self._sealed = self._sealed, None
        if found is not None:
            found.close()
        self.reading.forget()

    # -- what a remote object is told

    def on_word(self, message: Message) -> None:
        """On the handler thread: the owner is about to end, or has let go of the block."""
        (word,) = read(WORD, message.body)
        if word == Word.HURRY:
            self.soon(self._secure)
        elif word == Word.FREED:
            self._is_freed = True
            self.soon(self.evict)

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the block is: handles go on with what is here."""
        self._is_freed = True
        self.soon(self._keep_no_more)

    def _keep_no_more(self) -> None:
        self.evict()
        self.reading.forget()

    def _secure(self) -> None:
        if not self._attached:
            # nobody here may ask for it any more
            return
        try:
            self.body()
        except PeerLostError:
            # whoever asks for the value is told
            return

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        self._store.unused.remove(self)
        return NO_PAGE

    def _stays(self) -> bool:
        if self._sealed is None or self._is_freed or self.is_lost:
            return False
        for other in self._store.unused.add(self, self._size):
            other.soon(other.evict)
        return True

    def _drop(self, end: int) -> None:
        try:
            super()._drop(end)
        finally:
            if self._done:
                self.let_go()

    # -- inside, with `_getting` held

    def _get(self) -> None:
        place = self._locate(alone=False)
        if place is not None and not self._map(place):
            place = self._locate(alone=True)
        if self._sealed is None:
            self._fetch()

    def _locate(self, *, alone: bool) -> Place | None:
        pending = self.call([LOCATE.pack(Op.LOCATE, alone)])
        pending.wait()
        body = pending.result()
        return Place.unpack(body) if len(body) else None

    def _map(self, place: Place) -> bool:
        found = sealed.find(place, self._folder)
        if found is None or found.size != self._size:
            return False
        self._has(found)
        return True

    def _has(self, found: Sealed) -> None:
        self._sealed = found
        # mapped at once: from now on no process but this one matters
        found.view()
        self.soon(functools.partial(self.cast, [has(found.place)]))

    def _fetch(self) -> None:
        for other in self._store.unused.make_room(self._size):
            other.evict()
        try:
            draft = Draft(self._size, self._folder, self._store.ident)
            try:
                for begin, piece in self._pieces():
                    draft.write(begin, piece)
                found = draft.seal()
            except BaseException:
                draft.discard()
                raise
        except BaseException:
            # somebody else on this host may be more lucky
            self.soon(functools.partial(self.cast, [GIVE_UP.pack(Op.GIVE_UP)]))
            raise
        self._has(found)

    def _pieces(self) -> Iterator[tuple[int, memoryview]]:
        """All pieces with where they begin, a few of which are on their way at a time."""
        waiting: deque[tuple[int, Pending]] = deque()
        for begin in range(0, self._size, MOST):
            size = min(MOST, self._size - begin)
            waiting.append((begin, self.call([FETCH.pack(Op.FETCH, begin, size)])))
            if len(waiting) == _WINDOW:
                yield self._piece(*waiting.popleft())
        while waiting:
            yield self._piece(*waiting.popleft())

    def _piece(self, begin: int, pending: Pending) -> tuple[int, memoryview]:
        pending.wait()
        answer = pending.result()
        size = min(MOST, self._size - begin)
        digest, piece = answer[:DIGEST], answer[DIGEST:]
        if len(piece) != size or piece_digest(begin, piece) != digest:
            msg = f"{size} bytes from {begin} on of a shared value came damaged"
            raise WireError(msg)
        return begin, piece

    def _folder(self) -> Path:
        return self._store.node.directory
