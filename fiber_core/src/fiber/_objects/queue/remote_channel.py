"""A queue or pipe as another process than its owner's sees it.

The writing side of a lane in another process than its owner's.

:class:`RemoteSink` gathers what is put in batches and sends them while the writer goes on.
:class:`DirectSink` is for pipes to a process of the same host: the kernel has a message when its put
returns, so that it arrives whatever becomes of the writer, as with ``multiprocessing``.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol
from fiber._objects.address import Address
from fiber._objects.owner import Owner
from fiber._objects.protocol import WINDOW, Op, Outcome, Word
from fiber._objects.queue import messages
from fiber._objects.queue.messages import Item
from fiber._objects.queue.reader import RemoteSource
from fiber._objects.remote import NO_PAGE, Remote
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.store import Store

#: most of one batch; one item may be larger
_BATCH_ITEMS = 4096
_BATCH_BYTES = 2**20
#: from here on ``put`` waits until some are on their way
_PENDING_ITEMS = 4096
_PENDING_BYTES = 4 * 2**20
#: a put that comes so many seconds after the last message went out joins others in the next one
_CROWD = 0.00002
#: most messages, and bytes from which on there is no other, that a direct sink has on their way
_DIRECT_MESSAGES = 1024
_DIRECT_BYTES = 2**20


class RemoteSink:
    """A put goes out at once, and many that follow each other closely go out together.

    Where the lane has a ``maxsize`` a put waits for the owner's word, since only the owner knows
    whether there is room; its answer says for how many more there is room set aside.
    """

    def __init__(self, remote: RemoteChannel, lane: int) -> None:
        self._remote = remote
        self._lane = lane
        self._bounded = remote.shape.lanes[lane].maxsize > 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # held over taking a batch and sending it, so that batches keep their order
        self._wire = threading.Lock()
        self._pending: deque[Item] = deque()
        self._bytes = 0
        # batches sent, and those that the owner has said to have
        self._sent = self._taken = 0
        self._sent_at = 0.0
        # items that may be sent without asking, where the owner limits their number
        self._may_send = 0
        # True while the courier is going to send what is pending
        self._coming = False
        self._waiting = 0
        self._broken = False
        self._error: PeerLostError | None = None
        #: True where the end of this process does not wait
        self.is_abandoned = False
        self._head = protocol.PUT.pack(Op.PUT, lane)

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over, see :class:`~fiber._objects.handle.Sink`."""
        with self._lock:
            if self._broken or self._error is not None:
                self._refuse()
            ask = self._bounded and not self._may_send
            crowd = False
            if not ask:
                if self._is_full and not self._wait_for_room(block, timeout):
                    raise queue.Full
                self._may_send -= self._bounded
                self._pending.append(item)
                self._bytes += len(item)
                if self._coming or self._sent - self._taken >= WINDOW:
                    return
                crowd = self._coming = time.perf_counter() - self._sent_at < _CROWD
                sent = self._sent
        if ask:
            self._offer(item, block, timeout)
        elif crowd:
            self._remote.soon(self._come)
        elif not self._push(block=False) or (self._error is not None and self._sent == sent):
            # an owner that has ended since is no failure: perhaps that was what it waited for
            with self._lock:
                self._refuse()

    def send_all(self) -> None:
        """Send all that was put; what is sent behind it arrives behind it."""
        self._push(block=True, window=False)

    def flush(self) -> None:
        """Wait until all that was put is with the owner, or the owner is gone."""
        self.send_all()
        self._remote.sync()

    def deliver(self) -> None:
        """Wait until all that was put arrives whatever becomes of this process."""
        self.send_all()
        if self._sent:
            self._remote.deliver()

    def abandon(self) -> None:
        """Let the end of this process wait for nothing that was put."""
        self.is_abandoned = True

    # -- what the owner says

    def taken(self, batches: int) -> None:
        """So many are in."""
        with self._lock:
            self._taken = min(self._sent, batches)
            if not self._pending or self._coming or self._sent - self._taken >= WINDOW:
                return
            self._coming = True
        self._remote.soon(self._come)

    def mark_broken(self) -> None:
        """Nobody reads any more."""
        with self._lock:
            self._broken = True
            self._forget()

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is."""
        lost = self._remote.loss(error)
        with self._lock:
            self._error = self._error or lost
            self._forget()

    def _forget(self) -> None:
        self._pending.clear()
        self._bytes = 0
        self._room.notify_all()

    # -- batches

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= _PENDING_ITEMS or self._bytes >= _PENDING_BYTES

    def _wait_for_room(self, block: bool, timeout: float | None) -> bool:
        if not block:
            return False
        self._waiting += 1
        try:
            done = self._room.wait_for(
                lambda: not self._is_full or self._broken or self._error is not None, timeout
            )
        finally:
            self._waiting -= 1
        if self._broken or self._error is not None:
            self._refuse()
        return done

    def _refuse(self) -> None:
        if self._error is not None:
            raise PeerLostError(*self._error.args) from self._error
        msg = f"nobody reads this {self._remote.shape.name} any more"
        raise BrokenPipeError(msg)

    def _come(self) -> None:
        """On the courier: send what has gathered."""
        with self._lock:
            self._coming = False
        self._push(block=True)

    def _push(self, *, block: bool, window: bool = True) -> bool:
        """Send what is pending, as far as the window allows; False where it could not be sent."""
        while self._wire.acquire(blocking=block):
            try:
                while (batch := self._next(window=window)) is not None:
                    self._remote.cast([self._head, *messages.pack(batch)])
                    self._sent_at = time.perf_counter()
            except TransportError as error:
                self.fail(error)
                return False
            finally:
                self._wire.release()
            with self._lock:
                # what came in between found the wire taken
                if not self._pending or (window and self._sent - self._taken >= WINDOW):
                    break
        return True

    def _next(self, *, window: bool) -> list[Item] | None:
        with self._lock:
            if not self._pending or (window and self._sent - self._taken >= WINDOW):
                return None
            if len(self._pending) <= _BATCH_ITEMS and self._bytes <= _BATCH_BYTES:
                batch, self._pending = list(self._pending), deque()
                self._bytes = 0
            else:
                batch = [self._pending.popleft()]
                size = len(batch[0])
                while self._pending and len(batch) < _BATCH_ITEMS:
                    size += len(self._pending[0])
                    if size > _BATCH_BYTES:
                        break
                    batch.append(self._pending.popleft())
                self._bytes -= sum(map(len, batch))
            self._sent += 1
            if self._waiting:
                self._room.notify_all()
            return batch

    # -- where the number of items is limited

    def give_up(self) -> None:
        """Another writer waits: give up the room that is set aside; not on the handler thread."""
        self.send_all()
        with self._wire:
            with self._lock:
                count, self._may_send = self._may_send, 0
            with contextlib.suppress(PeerLostError):
                self._remote.cast([protocol.GIVE_UP.pack(Op.GIVE_UP, self._lane, count)])

    def _offer(self, item: Item, block: bool, timeout: float | None) -> None:
        # what was sent without asking comes first
        self.send_all()
        outcome = Outcome.BROKEN
        try:
            head = protocol.OFFER.pack(Op.OFFER, self._lane, block)
            pending = self._remote.call([head, *messages.pack([item])])
            if not pending.wait(timeout if block else None):
                number = protocol.WITHDRAW.pack(Op.WITHDRAW, self._lane, pending.number)
                self._remote.cast([number])
                pending.wait()
            outcome, count = protocol.read(protocol.OUTCOME, pending.result())
        except TransportError as error:
            self.fail(error)
            count = 0
        if outcome == Outcome.FULL:
            raise queue.Full
        with self._lock:
            self._may_send += count
            if outcome == Outcome.BROKEN:
                self._broken = True
                self._refuse()


class DirectSink(RemoteSink):
    """Each message is sent by the thread that puts it, which waits while the owner holds it back.

    Only for lanes without a ``maxsize``, and connections that the kernel keeps.
    """

    def __init__(self, remote: RemoteChannel, lane: int) -> None:
        super().__init__(remote, lane)
        # bytes of each message that the owner has not said to have, and their sum
        self._sizes: deque[int] = deque()
        self._on_way = 0

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over, see :class:`~fiber._objects.handle.Sink`; always waits for room."""
        with self._wire:
            with self._lock:
                self._room.wait_for(self._may_go_on)
                if self._broken or self._error is not None:
                    self._refuse()
            try:
                self._remote.cast([self._head, *messages.pack([item])])
            except TransportError as error:
                self.fail(error)
                with self._lock:
                    self._refuse()
            with self._lock:
                self._sent += 1
                self._sizes.append(len(item))
                self._on_way += len(item)

    def send_all(self) -> None:
        """Nothing is left here by a put."""

    def taken(self, batches: int) -> None:
        """So many are in."""
        with self._lock:
            # of one whose put was interrupted only the owner may know
            self._taken = min(self._sent, batches)
            while len(self._sizes) > self._sent - self._taken:
                self._on_way -= self._sizes.popleft()
            self._room.notify_all()

    def _may_go_on(self) -> bool:
        if self._broken or self._error is not None:
            return True
        count = len(self._sizes)
        return count < WINDOW or (count < _DIRECT_MESSAGES and self._on_way < _DIRECT_BYTES)


_ANSWERS = (Word.ITEMS, Word.NOTHING, Word.END, Word.READY, Word.UNREADY)


class RemoteChannel(Remote):
    """Its lanes, each with the side or sides that are held here."""

    _source_class: type[Any] = RemoteSource

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self._sources: dict[int, RemoteSource] = {}
        self._sinks: dict[int, RemoteSink] = {}
        self._sessions = itertools.count(1)

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

    # -- what the owner says, and its loss

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
                came = messages.unpack(batch) if word == Word.ITEMS else ()
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

    def give_back(self) -> None:
        """This process ends: what was not handed out goes back."""
        for source in list(self._sources.values()):
            source.close()

    # -- ends

    def _heard(self, slot: int, seen: bool) -> None:
        for source in list(self._sources.values()):
            if source.slot.index == slot and not seen:
                source.unseen()

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        lane = self._shape.lane_written_by(end)
        if lane is not None:
            is_pipe = self._shape.ends > 1
            sink = DirectSink if is_pipe and self._owner.keeps else RemoteSink
            self._sinks[lane] = sink(self, lane)
        lane = self._shape.lane_read_by(end)
        if lane is None:
            return NO_PAGE
        slot = self._owner.slot()
        self._sources[lane] = self._source_class(self, lane, slot, next(self._sessions))
        return slot.index, *self._owner.page()

    def _close(self, end: int) -> None:
        read, written = self._shape.lane_read_by(end), self._shape.lane_written_by(end)
        sink = None if written is None else self._sinks.pop(written)
        source = None if read is None else self._sources.pop(read)
        if sink is not None:
            sink.send_all()
        if source is not None:
            source.close()
            self._owner.release(source.slot)
