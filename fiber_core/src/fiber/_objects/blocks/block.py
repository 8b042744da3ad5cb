"""A block of another process: mapped where it is on this host, else fetched once a host.

What is here stays when the last handle goes, see :mod:`fiber._objects.blocks.copies`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fiber._objects.blocks import protocol
from fiber._objects.blocks.protocol import DIGEST, MOST, Op, Word
from fiber._objects.blocks.reading import Reading
from fiber._objects.memory import sealed
from fiber._objects.memory.backing import HEAD, Place
from fiber._objects.memory.sealed import Draft, Sealed
from fiber._objects.protocol import read
from fiber._objects.remote import NO_PAGE, Remote
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, TransportError, WireError

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.address import Address
    from fiber._objects.owner import Owner
    from fiber._objects.store import Store
    from fiber._wire.client import Pending

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
                    self.cast([protocol.GIVE_UP.pack(Op.GIVE_UP)])
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
        (word,) = read(protocol.WORD, message.body)
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
        pending = self.call([protocol.LOCATE.pack(Op.LOCATE, alone)])
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
        self.soon(functools.partial(self.cast, [protocol.has(found.place)]))

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
            self.soon(functools.partial(self.cast, [protocol.GIVE_UP.pack(Op.GIVE_UP)]))
            raise
        self._has(found)

    def _pieces(self) -> Iterator[tuple[int, memoryview]]:
        """All pieces with where they begin, a few of which are on their way at a time."""
        waiting: deque[tuple[int, Pending]] = deque()
        for begin in range(0, self._size, MOST):
            size = min(MOST, self._size - begin)
            waiting.append((begin, self.call([protocol.FETCH.pack(Op.FETCH, begin, size)])))
            if len(waiting) == _WINDOW:
                yield self._piece(*waiting.popleft())
        while waiting:
            yield self._piece(*waiting.popleft())

    def _piece(self, begin: int, pending: Pending) -> tuple[int, memoryview]:
        pending.wait()
        answer = pending.result()
        size = min(MOST, self._size - begin)
        digest, piece = answer[:DIGEST], answer[DIGEST:]
        if len(piece) != size or protocol.digest(begin, piece) != digest:
            msg = f"{size} bytes from {begin} on of a shared value came damaged"
            raise WireError(msg)
        return begin, piece

    def _folder(self) -> Path:
        return self._store.node.directory
