"""A queue or pipe as another process than its owner's sees it."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fiber.exceptions import PeerLostError, TransportError
from fiber.objects import items, protocol
from fiber.objects.address import Address, Shape
from fiber.objects.owner import Owner
from fiber.objects.protocol import Op, Word
from fiber.objects.references import NO_TICKET
from fiber.objects.sink import RemoteSink
from fiber.objects.source import RemoteSource
from fiber.transport.wire import Buffer, Message

if TYPE_CHECKING:
    from fiber.objects.store import Store
    from fiber.transport.client import Pending

_ANSWERS = (Word.ITEMS, Word.NOTHING, Word.END)


class Remote:
    """One for each object and process; its handles share it."""

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._address = address
        self._shape = address.shape
        self.target = address.target
        # also held while other processes are told of ends, so that they hear it in order
        self._lock = threading.RLock()
        # True once the owner was told that nobody holds it here; a new one takes its place
        self._done = False
        self._holds = [0] * self._shape.ends
        self._attached: set[int] = set()
        self._sources: dict[int, RemoteSource] = {}
        self._sinks: dict[int, RemoteSink] = {}
        self._sessions = itertools.count(1)

    @property
    def shape(self) -> Shape:
        """What it is made of."""
        return self._shape

    @property
    def address(self) -> Address:
        """What is pickled in its place."""
        return self._address

    @property
    def is_near(self) -> bool:
        """True where its owner runs on this host."""
        return self._owner.is_near

    @property
    def is_lost(self) -> bool:
        """True once its owner is gone."""
        return self._owner.is_lost

    # -- for handles

    def source(self, lane: int) -> RemoteSource:
        """The reading side of a lane."""
        with self._lock:
            return self._sources[lane]

    def sink(self, lane: int) -> RemoteSink:
        """The writing side of a lane."""
        with self._lock:
            return self._sinks[lane]

    def size(self, lane: int) -> int:
        """Items in a lane."""
        try:
            sink, source = self._sinks.get(lane), self._sources.get(lane)
            if sink is not None:
                sink.send_all()
            if source is not None:
                source.tell()
            pending = self.call([protocol.SIZE.pack(Op.SIZE, lane)])
            pending.wait()
            return int(protocol.read(protocol.SIZED, pending.result())[0])
        except PeerLostError as error:
            raise self.loss(error) from error

    def hold(self, end: int, ticket: int = NO_TICKET) -> bool:
        """There is one more handle of an end here; False where the last one has just gone."""
        with self._lock:
            if self._done:
                return False
            self._holds[end] += 1
            if end in self._attached and ticket == NO_TICKET:
                return True
            try:
                self._owner.listen(self.target, self.on_word)
                self._attach(end, ticket)
            except PeerLostError as error:
                self._attach_in_vain(end)
                self.fail(error)
            return True

    def drop(self, end: int) -> None:
        """A handle of an end was closed."""
        self.soon(functools.partial(self._drop, end))

    # a finalizer may call it: the courier takes no lock
    drop_soon = drop

    def issue(self, ticket: int, end: int, uses: int) -> None:
        """A pickle of an end is on its way."""
        message = protocol.TICKET.pack(Op.TICKET, end, ticket, uses)
        self.soon(functools.partial(self.cast, [message]))

    def void(self, ticket: int) -> None:
        """A pickle of an end is loaded no more."""
        self._owner.void(self.target, ticket)

    # -- for its sides

    def call(self, segments: Sequence[Buffer]) -> Pending:
        """Send what is answered."""
        return self._owner.call(self.target, segments)

    def cast(self, segments: Sequence[Buffer]) -> None:
        """Send what is not answered."""
        self._owner.cast(self.target, segments)

    def soon(self, action: Callable[[], Any]) -> None:
        """Have something done on another thread, in order."""
        self._owner.soon(action)

    def call_later(self, delay: float, action: Callable[[], Any]) -> None:
        """Have something done in a moment, on the handler thread."""
        self._store.call_later(delay, action)

    def loss(self, error: BaseException) -> PeerLostError:
        """What an error of the connection means for users."""
        if self.is_lost or not isinstance(error, PeerLostError):
            lost = self._owner.lost(self._shape.name)
            lost.__cause__ = lost.__cause__ or error
            return lost
        msg = f"the {self._shape.name} no longer exists in its process; its last holder let it go"
        return PeerLostError(msg)

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is."""
        # without the lock, which may be held over sending: the handler thread comes here
        for source in list(self._sources.values()):
            source.fail(error)
        for sink in list(self._sinks.values()):
            sink.fail(error)

    def on_word(self, message: Message) -> None:
        """On the handler thread: the owner says something unasked."""
        body = message.body
        word, lane = protocol.read(protocol.WORD, body)
        source, sink = self._sources.get(lane), self._sinks.get(lane)
        if word in _ANSWERS:
            _, _, session, kept, first = protocol.read(protocol.ANSWER, body)
            if source is not None and source.session == session:
                batch = body[protocol.ANSWER.size :]
                came = items.unpack(batch) if word == Word.ITEMS else ()
                source.answered(word, bool(kept), first, came)
        elif word == Word.TAKEN and sink is not None:
            sink.taken(protocol.read(protocol.TAKEN, body)[2])
        elif word == Word.RECALL and source is not None:
            self.soon(source.give_back)
        elif word == Word.HURRY and source is not None:
            source.hurry()
        elif word == Word.REVOKE and sink is not None:
            self.soon(sink.give_up)
        elif word == Word.BROKEN and sink is not None:
            sink.mark_broken()

    # -- the end

    def flush(self) -> None:
        """Send all that was put."""
        for sink in list(self._sinks.values()):
            if not sink.is_abandoned:
                sink.send_all()

    def sync(self) -> None:
        """Wait until all that was sent is with the owner."""
        self._owner.sync()

    def give_back(self) -> None:
        """This process ends: what was not handed out goes back."""
        for source in list(self._sources.values()):
            source.close()

    # -- inside

    def _attach(self, end: int, ticket: int) -> None:
        slot, (mark, page) = -1, (b"", b"")
        if end not in self._attached:
            slot, mark, page = self._open(end)
            self._attached.add(end)
        head = protocol.ATTACH.pack(Op.ATTACH, end, ticket, slot, mark)
        self.call([head, page]).then(functools.partial(self._heard, slot))

    def _heard(self, slot: int, pending: Pending) -> None:
        """On the handler thread: the owner has noted that we hold an end, or cannot."""
        try:
            (seen,) = protocol.read(protocol.ATTACHED, pending.result())
        except TransportError as error:
            self.fail(error)
            return
        for source in list(self._sources.values()):
            if source.slot.index == slot and not seen:
                source.unseen()

    def _attach_in_vain(self, end: int) -> None:
        if end not in self._attached:
            self._open(end)
            self._attached.add(end)

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        lane = self._shape.lane_written_by(end)
        if lane is not None:
            self._sinks[lane] = RemoteSink(self, lane)
        lane = self._shape.lane_read_by(end)
        if lane is None:
            return -1, b"", b""
        slot = self._owner.slot()
        self._sources[lane] = RemoteSource(self, lane, slot, next(self._sessions))
        return slot.index, *self._owner.page()

    def _drop(self, end: int) -> None:
        """On the courier: a handle is gone, perhaps the last one."""
        with self._lock:
            self._holds[end] -= 1
            if self._holds[end] or end not in self._attached:
                return
            self._attached.discard(end)
            read, written = self._shape.lane_read_by(end), self._shape.lane_written_by(end)
            sink = None if written is None else self._sinks.pop(written)
            source = None if read is None else self._sources.pop(read)
            if sink is not None:
                sink.send_all()
            if source is not None:
                source.close()
                self._owner.release(source.slot)
            try:
                self.cast([protocol.DETACH.pack(Op.DETACH, end)])
            finally:
                if not self._attached:
                    self._done = True
                    self._store.forget_remote(self)
