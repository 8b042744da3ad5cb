"""A queue or pipe in other processes than its owner's: writers, and the object that handles share.

:class:`RemoteWriter` gathers items in batches and sends them while the user's thread goes on.
:class:`DirectWriter` is for pipes to a process of the same host: the kernel has a message when its
put returns, so that it arrives whatever becomes of the writer, as with ``multiprocessing``.
:class:`RemoteChannel` has a reader (see :mod:`fiber._objects.queue.reader`) and a writer for each
direction that is held in this process, and hands the owner's messages to them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fiber._base.entry_points import load_object
from fiber._base.threads import in_turns
from fiber._objects import protocol
from fiber._objects.address import Address
from fiber._objects.pipe import memories
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.protocol import WINDOW, Notice, Op, Outcome, Step
from fiber._objects.queue import messages
from fiber._objects.queue.messages import Item
from fiber._objects.queue.reader import RemoteReader
from fiber._objects.remote_object import NO_PAGE, Owner, RemoteObject
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.queue.bypass_socket import WritingEnd
    from fiber._objects.store import Store
    from fiber._wire.reading import Action

#: most items and bytes of one batch; one item may be larger
_BATCH_ITEMS = 4096
_BATCH_BYTES = 2**20
#: items and bytes gathered from which on ``put`` waits until a batch was sent
_PENDING_ITEMS = 4096
_PENDING_BYTES = 4 * 2**20
#: seconds after a message within which a put is gathered with others for the next one
_BATCH_WITHIN = 0.00002
#: most messages in transit of a direct writer, and bytes in transit from which on it sends no more
_DIRECT_MESSAGES = 1024
_DIRECT_BYTES = 2**20


class RemoteWriter:
    """Writer that sends a put at once, and many that follow each other closely in one batch.

    Where the queue has a ``maxsize``, a put is an offer that waits for the owner's answer, since
    only the owner knows whether there is room; the answer grants credits: items that are sent
    without. At most :data:`~fiber._objects.protocol.WINDOW` batches are unacknowledged.

    Locks: ``_lock`` guards the state; ``_wire`` is held over taking a batch and sending it.
    """

    def __init__(self, remote: RemoteChannel, direction: int) -> None:
        self._remote = remote
        self._direction = direction
        self._bounded = remote.shape.directions[direction].maxsize > 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # batches keep their order
        self._wire = threading.Lock()
        self._pending: deque[Item] = deque()
        self._bytes = 0
        # batches sent, and those that the owner acknowledged
        self._sent = self._acknowledged = 0
        # bytes of each that was not, and their sum
        self._sizes: deque[int] = deque()
        self._bytes_in_transit = 0
        self._sent_at = 0.0
        # items that may be sent without an offer, where there is a maxsize
        self._credit = 0
        # True while the executor is going to send what is pending
        self._is_scheduled = False
        self._waiting = 0
        self._broken = False
        self._error: PeerLostError | None = None
        #: True where the end of this process does not wait for what was put
        self.is_abandoned = False
        self._head = protocol.PUT.pack(Op.PUT, direction)
        # True once an item was in memory
        self._has_memory = False
        # through which its reader gets items that are put one by one
        self._bypass: WritingEnd | None = None

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Put an item, see :class:`~fiber._objects.handle.Writer`."""
        # the usual case first, of one item that nothing waits in front of
        is_alone = not (self._pending or self._bounded)
        if is_alone and type(item) is bytes and self._wire.acquire(blocking=False):
            try:
                with self._lock:
                    is_sent = self._goes_alone()
                    if is_sent:
                        self._note_sent(len(item))
                if is_sent:
                    head = self._head if self._bypass is None else self._pass_by(self._bypass, item)
                    self._remote.cast([head, *messages.pack([item])])
                    self._sent_at = time.perf_counter()
            except TransportError as error:
                self.fail(error)
                with self._lock:
                    self._refuse()
            finally:
                self._wire.release()
            if self._pending:
                # put by another thread, which found `_wire` taken
                self._push(block=False)
            if is_sent:
                return
        with self._lock:
            if self._broken or self._error is not None:
                self._refuse()
            ask = self._bounded and not self._credit
            crowd = False
            if not ask:
                if self._is_full and not self._wait_for_room(block, timeout):
                    raise queue.Full
                if type(item) is ItemInMemory:
                    self._has_memory = True
                self._credit -= self._bounded
                self._pending.append(item)
                self._bytes += len(item)
                if self._is_scheduled or self._is_window_full:
                    return
                crowd = self._is_scheduled = time.perf_counter() - self._sent_at < _BATCH_WITHIN
                sent = self._sent
        if ask:
            self._offer(item, block, timeout)
        elif crowd:
            self._remote.submit(self._send_gathered)
        elif not self._push(block=False) or (self._error is not None and self._sent == sent):
            # an owner that has ended since is no failure: perhaps that was what it waited for
            with self._lock:
                self._refuse()

    def send_all(self) -> None:
        """Send all items that were put; later messages arrive after them."""
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

    def close(self) -> None:
        """Send all items that were put, as the last handle is closed."""
        self.send_all()
        bypass = self._bypass
        if bypass is not None:
            bypass.close()

    def abandon(self) -> None:
        """Do not wait at this process's end for items that were put."""
        self.is_abandoned = True

    # -- messages of the owner

    def on_acknowledged(self, batches: int) -> None:
        """Note the number of batches that the owner acknowledged."""
        with self._lock:
            self._note_acknowledged(batches)
            if not self._pending or self._is_scheduled or self._is_window_full:
                return
            self._is_scheduled = True
        self._remote.submit(self._send_gathered)

    def on_broken(self) -> None:
        """Fail every put from now on: there is no reader any more."""
        with self._lock:
            self._broken = True
            self._forget()

    def fail(self, error: BaseException) -> None:
        """Fail every put from now on: the owner is gone, or the object is."""
        lost = self._remote.loss_error(error)
        with self._lock:
            self._error = self._error or lost
            self._forget()

    def _forget(self) -> None:
        self._pending.clear()
        self._bytes = 0
        self._room.notify_all()

    # -- batches

    def _goes_alone(self) -> bool:
        """True where an item is sent at once; False where the rest is to be looked at."""
        if self._pending or self._broken or self._error is not None:
            return False
        # those in memory go by another way, and what follows them waits for that
        if self._has_memory:
            return False
        has_room = (
            len(self._sizes) < protocol.SMALL_WINDOW
            and self._bytes_in_transit < protocol.SMALL_BYTES
        )
        if not has_room and self._is_window_full:
            return False
        if self._bypass is not None:
            return self._bypass.is_quick(self._sent_at)
        return time.perf_counter() - self._sent_at >= _BATCH_WITHIN

    # -- a bypass

    def keep_bypass(self, bypass: WritingEnd) -> None:
        """Send what is put one by one through it from now on."""
        # without `_wire`: whoever holds that has to send what others put meanwhile
        self._bypass = bypass

    def _pass_by(self, bypass: WritingEnd, item: bytes) -> bytes:
        """Send an item through a bypass; the head of the message with which the owner gets it. `_wire` is held."""
        # first, for whom it is waits for it
        if len(item) <= bypass.largest and bypass.send(item):
            return protocol.PUT_COPY.pack(Op.PUT_COPY, self._direction, bypass.number, bypass.count)
        self._end_bypass()
        return self._head

    def _end_bypass(self) -> None:
        if self._bypass is not None:
            # its reader leaves it once it has what is in it
            self._bypass.close()
            self._bypass = None

    def _note_sent(self, size: int) -> None:
        self._sent += 1
        self._sizes.append(size)
        self._bytes_in_transit += size

    def _note_acknowledged(self, batches: int) -> None:
        # one that was interrupted may have been sent without being counted here
        self._acknowledged = min(self._sent, batches)
        while len(self._sizes) > self._sent - self._acknowledged:
            self._bytes_in_transit -= self._sizes.popleft()

    @property
    def _is_window_full(self) -> bool:
        count = len(self._sizes)
        return count >= WINDOW and (
            count >= protocol.SMALL_WINDOW or self._bytes_in_transit >= protocol.SMALL_BYTES
        )

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= _PENDING_ITEMS or self._bytes >= _PENDING_BYTES

    def _wait_for_room(self, block: bool, timeout: float | None) -> bool:
        if not block:
            return False
        self._waiting += 1
        try:
            done = in_turns(
                lambda turn: self._room.wait_for(
                    lambda: not self._is_full or self._broken or self._error is not None, turn
                ),
                timeout,
            )
        finally:
            self._waiting -= 1
        if self._broken or self._error is not None:
            self._refuse()
        return done

    def _refuse(self) -> None:
        if self._error is not None:
            raise PeerLostError(*self._error.args) from self._error
        msg = f"this {self._remote.shape.name} has no reader any more"
        raise BrokenPipeError(msg)

    def _send_gathered(self) -> None:
        """Send the gathered items; on the executor."""
        with self._lock:
            self._is_scheduled = False
        self._push(block=True)

    def _push(self, *, block: bool, window: bool = True) -> bool:
        """Send pending items as far as the window allows; False where the owner is lost."""
        while self._wire.acquire(blocking=block):
            try:
                while self._pending and (batch := self._next(window=window)) is not None:
                    if self._bypass is not None and self._bypass.count:
                        # what goes to the owner alone comes behind what went through it
                        self._end_bypass()
                    items = self._remote.sent(batch) if self._has_memory else batch
                    self._remote.cast([self._head, *messages.pack(items)])
                    self._sent_at = time.perf_counter()
            except TransportError as error:
                self.fail(error)
                return False
            finally:
                self._wire.release()
            # items put in between found `_wire` taken
            if not self._pending:
                break
            with self._lock:
                if not self._pending or (window and self._is_window_full):
                    break
        return True

    def _next(self, *, window: bool) -> list[Item] | None:
        with self._lock:
            if not self._pending or (window and self._is_window_full):
                return None
            if len(self._pending) <= _BATCH_ITEMS and self._bytes <= _BATCH_BYTES:
                batch, self._pending = list(self._pending), deque()
                size, self._bytes = self._bytes, 0
            else:
                batch = [self._pending.popleft()]
                size = len(batch[0])
                while self._pending and len(batch) < _BATCH_ITEMS:
                    if size + len(self._pending[0]) > _BATCH_BYTES:
                        break
                    size += len(self._pending[0])
                    batch.append(self._pending.popleft())
                self._bytes -= size
            self._note_sent(size)
            if self._waiting:
                self._room.notify_all()
            return batch

    # -- where there is a maxsize

    def return_credit(self) -> None:
        """Return all credits, for another writer waits; not on the handler thread."""
        self.send_all()
        with self._wire:
            with self._lock:
                count, self._credit = self._credit, 0
            with contextlib.suppress(PeerLostError):
                self._remote.cast(
                    [protocol.RETURN_CREDIT.pack(Op.RETURN_CREDIT, self._direction, count)]
                )

    def _offer(self, item: Item, block: bool, timeout: float | None) -> None:
        # items sent without an offer come first
        self.send_all()
        outcome = Outcome.BROKEN
        try:
            head = protocol.OFFER.pack(Op.OFFER, self._direction, block)
            pending = self._remote.call([head, *messages.pack(self._remote.sent([item]))])
            if not pending.wait(timeout if block else None):
                number = protocol.WITHDRAW.pack(Op.WITHDRAW, self._direction, pending.number)
                self._remote.cast([number])
                pending.wait()
            outcome, count = protocol.read(protocol.OUTCOME, pending.result())
        except TransportError as error:
            self.fail(error)
            count = 0
        if outcome == Outcome.FULL:
            raise queue.Full
        with self._lock:
            self._credit += count
            if outcome == Outcome.BROKEN:
                self._broken = True
                self._refuse()


class DirectWriter(RemoteWriter):
    """Writer whose messages are sent by the thread that puts them, which waits for the window.

    Only where there is no ``maxsize``, and on connections whose data the kernel keeps (sockets of
    the same host).
    """

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Put an item, see :class:`~fiber._objects.handle.Writer`; always waits for the window."""
        with self._wire:
            with self._lock:
                self._room.wait_for(self._may_send)
                if self._broken or self._error is not None:
                    self._refuse()
            try:
                self._remote.cast([self._head, *messages.pack([item])])
            except TransportError as error:
                self.fail(error)
                with self._lock:
                    self._refuse()
            with self._lock:
                self._note_sent(len(item))

    def send_all(self) -> None:
        """Do nothing: a put sends its item."""

    def on_acknowledged(self, batches: int) -> None:
        """Note the number of batches that the owner acknowledged."""
        with self._lock:
            self._note_acknowledged(batches)
            self._room.notify_all()

    def _may_send(self) -> bool:
        if self._broken or self._error is not None:
            return True
        count = len(self._sizes)
        return count < WINDOW or (
            count < _DIRECT_MESSAGES and self._bytes_in_transit < _DIRECT_BYTES
        )


_ANSWERS = (Notice.ITEMS, Notice.NOTHING, Notice.END, Notice.READY, Notice.UNREADY)


class RemoteChannel(RemoteObject):
    """A queue or pipe of another process: a reader and a writer for each direction held here."""

    _reader_class: type[Any] = RemoteReader

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self._readers: dict[int, RemoteReader] = {}
        self._writers: dict[int, RemoteWriter] = {}
        self._sessions = itertools.count(1)

    # -- for handles

    def reader(self, direction: int) -> RemoteReader:
        """The reader of a direction."""
        with self._lock:
            return self._readers[direction]

    def writer(self, direction: int) -> RemoteWriter:
        """The writer of a direction."""
        with self._lock:
            return self._writers[direction]

    def size(self, direction: int) -> int:
        """Number of items in a direction; a call to the owner."""
        try:
            writer, reader = self._writers.get(direction), self._readers.get(direction)
            if writer is not None:
                writer.send_all()
            if reader is not None:
                reader.report()
            pending = self.call([protocol.SIZE.pack(Op.SIZE, direction)])
            pending.wait()
            return int(protocol.read(protocol.SIZED, pending.result())[0])
        except PeerLostError as error:
            raise self.loss_error(error) from error

    # -- items in memory

    def takes_memory(self) -> bool:
        """True where items in memory may be put; asks the owner for a stream if there is none yet."""
        try:
            return self._owner.open_descriptor_stream(self.target) is not None
        except PeerLostError:
            return False

    def sent(self, items: Sequence[Item]) -> Sequence[Item]:
        """Items for a message to the owner."""
        stream = self._owner.descriptor_stream
        if stream is not None:
            return stream.send_items(items)
        return [item.copy() if type(item) is ItemInMemory else item for item in items]

    def _arrived(self, batch: memoryview) -> Sequence[Item]:
        """Items of a message of the owner; the first large one asks for a stream for those that follow."""
        items, stream = messages.unpack(batch), self._owner.descriptor_stream
        if stream is not None:
            return stream.receive_items(items)
        if len(batch) >= memories.LARGE and self._owner.is_same_host:
            self.submit(self.takes_memory)
        return items

    def _fetch_bypass(self, direction: int, number: int, step: int) -> None:
        """Fetch an end of a bypass; on the executor."""
        fetch = load_object("fiber._objects.queue.bypass_socket:fetch")
        fetched = fetch(self.call, direction, number, writes=step == Step.SEND)
        user: Any = (self._writers if step == Step.SEND else self._readers).get(direction)
        if fetched is not None and user is not None:
            user.keep_bypass(fetched)

    # -- messages and loss of the owner; on the handler thread

    def fail(self, error: BaseException) -> None:
        """Fail readers and writers: the owner is gone, or the object is."""
        # without the lock, which may be held over sending, for which the handler thread cannot wait
        for reader in list(self._readers.values()):
            reader.fail(error)
        for writer in list(self._writers.values()):
            writer.fail(error)

    def look(self, reader: RemoteReader, found: tuple[int, memoryview]) -> Action | None:
        """What a thread that waits for a reader's items does with a message; None for others'."""
        body = found[1]
        size = len(body)
        notice = body[0] if size else 0
        if notice == Notice.TAKEN:
            _, direction, count = protocol.read(protocol.TAKEN, body)
            writer = self._writers.get(direction)
            return None if writer is None else functools.partial(writer.on_acknowledged, count)
        if notice != Notice.ITEMS or size < protocol.ANSWER.size:
            return None
        notice, direction, session, kept, first = protocol.ANSWER.unpack_from(body)
        is_mine = reader is self._readers.get(direction) and reader.session == session
        if not is_mine or size >= memories.LARGE or self._owner.descriptor_stream is not None:
            return None
        one = messages.sole(body, protocol.ANSWER.size)
        items = messages.unpack(body[protocol.ANSWER.size :]) if one is None else [one]
        return functools.partial(reader.on_answer, notice, bool(kept), first, items)

    def wake(self) -> None:
        """Have the thread that reads the owner's messages look whether its wait is over."""
        if self.client is not None:
            self.client.wake()

    def on_notice(self, message: Message) -> None:
        """Take a message of the owner that is no reply."""
        body = message.body
        notice, direction = protocol.read(protocol.NOTICE, body)
        reader, writer = self._readers.get(direction), self._writers.get(direction)
        if notice in _ANSWERS:
            _, _, session, kept, first = protocol.read(protocol.ANSWER, body)
            # those for an earlier reader too, so that their memory is let go
            items = self._arrived(body[protocol.ANSWER.size :]) if notice == Notice.ITEMS else ()
            if reader is not None and reader.session == session:
                reader.on_answer(notice, bool(kept), first, items)
                reader.wake()
        elif notice == Notice.TAKEN and writer is not None:
            writer.on_acknowledged(protocol.read(protocol.TAKEN, body)[2])
        elif notice == Notice.RECALL and reader is not None:
            self.submit(reader.give_back)
        elif notice == Notice.REPORT_NOW and reader is not None:
            reader.report_at_once()
        elif notice == Notice.REVOKE and writer is not None:
            self.submit(writer.return_credit)
        elif notice == Notice.BROKEN and writer is not None:
            writer.on_broken()
        elif notice == Notice.BYPASS:
            _, _, step, number, session, count = protocol.read(protocol.BYPASS, body)
            if step != Step.OPEN:
                self.submit(functools.partial(self._fetch_bypass, direction, number, step))
            elif reader is not None:
                reader.on_bypass(number, session, count)

    # -- the end

    def flush(self) -> None:
        """Send all items that were put; as this process ends."""
        for writer in list(self._writers.values()):
            if not writer.is_abandoned:
                writer.send_all()

    def give_back(self) -> None:
        """Give prefetched items back; as this process ends."""
        for reader in list(self._readers.values()):
            reader.close()

    # -- ends

    def _on_attached(self, slot: int, seen: bool) -> None:
        for reader in list(self._readers.values()):
            if reader.slot.index == slot and not seen:
                reader.on_unseen()

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        direction = self._shape.direction_written_by(end)
        if direction is not None:
            is_pipe = self._shape.ends > 1
            writer = DirectWriter if is_pipe and self._owner.survives_exit else RemoteWriter
            self._writers[direction] = writer(self, direction)
        direction = self._shape.direction_read_by(end)
        if direction is None:
            return NO_PAGE
        slot = self._owner.slot()
        self._readers[direction] = self._reader_class(self, direction, slot, next(self._sessions))
        return slot.index, *self._owner.page()

    def _close(self, end: int) -> None:
        read, written = self._shape.direction_read_by(end), self._shape.direction_written_by(end)
        writer = None if written is None else self._writers.pop(written)
        reader = None if read is None else self._readers.pop(read)
        if writer is not None:
            writer.close()
        if reader is not None:
            reader.close()
            self._owner.release(reader.slot)
