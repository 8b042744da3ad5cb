"""The writing side of a lane in another process than its owner's."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

from fiber.exceptions import PeerLostError, TransportError
from fiber.objects import items, protocol
from fiber.objects.items import Item
from fiber.objects.protocol import Op, Outcome

if TYPE_CHECKING:
    from fiber.objects.remote import Remote
    from fiber.transport.client import Pending

#: batches on their way that the owner has not taken in
_WINDOW = 2
#: most of one batch; one item may be larger
_BATCH_ITEMS = 4096
_BATCH_BYTES = 2**20
#: from here on ``put`` waits for the owner
_PENDING_ITEMS = 4096
_PENDING_BYTES = 4 * 2**20


class RemoteSink:
    """Puts go out in batches: the first at once, the next while the owner takes that one in.

    Where the lane has a ``maxsize`` each put waits for the owner's word instead, since only the
    owner knows whether there is room.
    """

    def __init__(self, remote: Remote, lane: int) -> None:
        self._remote = remote
        self._lane = lane
        self._bounded = remote.shape.lanes[lane].maxsize > 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # held over taking a batch and sending it, so that batches keep their order
        self._wire = threading.Lock()
        self._pending: deque[Item] = deque()
        self._bytes = 0
        self._flying = 0
        self._waiting = 0
        self._broken = False
        self._error: PeerLostError | None = None
        #: True where the end of this process does not wait
        self.is_abandoned = False
        self._head = protocol.PUT.pack(Op.PUT, lane, 1)

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over, see :class:`~fiber.objects.ends.Sink`."""
        if self._bounded:
            self._put_and_wait(item, block, timeout)
            return
        with self._lock:
            if self._broken or self._error is not None:
                self._refuse()
            if self._is_full and not self._wait_for_room(block, timeout):
                raise queue.Full
            self._pending.append(item)
            self._bytes += len(item)
            if self._flying >= _WINDOW:
                return
        self._push(_WINDOW)
        if self._error is not None:
            self._refuse()

    def send_all(self) -> None:
        """Send all that was put; what is sent behind it arrives behind it."""
        self._push(None)

    def flush(self) -> None:
        """Wait until all that was put is with the owner, or the owner is gone."""
        self.send_all()
        self._remote.sync()

    def abandon(self) -> None:
        """Let the end of this process wait for nothing that was put."""
        self.is_abandoned = True

    def mark_broken(self) -> None:
        """Nobody reads any more."""
        with self._lock:
            self._broken = True
            self._pending.clear()
            self._bytes = 0
            self._room.notify_all()

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is."""
        lost = self._remote.loss(error)
        with self._lock:
            self._error = self._error or lost
            self._pending.clear()
            self._bytes = 0
            self._room.notify_all()

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

    # -- batches

    def _push(self, window: int | None = _WINDOW) -> None:
        """Send what waits, as far as the window allows; None for all of it."""
        while self._wire.acquire(blocking=window is None):
            try:
                while (batch := self._next(window)) is not None:
                    self._send(batch)
            finally:
                self._wire.release()
            with self._lock:
                # what came in between found the wire taken
                if not self._pending or (window is not None and self._flying >= window):
                    return

    def _next(self, window: int | None) -> list[Item] | None:
        with self._lock:
            if not self._pending or (window is not None and self._flying >= window):
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
            self._flying += 1
            if self._waiting:
                self._room.notify_all()
            return batch

    def _send(self, batch: list[Item]) -> None:
        try:
            pending = self._remote.call([self._head, *items.pack(batch)])
        except TransportError as error:
            self.fail(error)
            return
        acknowledged = False

        def once(answer: Pending) -> None:
            nonlocal acknowledged
            with self._lock:
                if acknowledged:
                    return
                acknowledged = True
            self._acknowledged(answer)

        pending.then(once)

    def _acknowledged(self, pending: Pending) -> None:
        """On the handler thread: the owner has taken a batch in, or could not."""
        try:
            (outcome,) = protocol.read(protocol.OUTCOME, pending.result())
        except TransportError as error:
            self.fail(error)
            return
        if outcome == Outcome.BROKEN:
            self.mark_broken()
        with self._lock:
            self._flying -= 1
            more = bool(self._pending)
        if more:
            self._remote.soon(self._push)

    # -- one by one

    def _put_and_wait(self, item: Item, block: bool, timeout: float | None) -> None:
        with self._lock:
            if self._broken or self._error is not None:
                self._refuse()
        try:
            head = protocol.PUT.pack(Op.PUT, self._lane, block)
            pending = self._remote.call([head, *items.pack([item])])
            if not pending.wait(timeout if block else None):
                number = protocol.WITHDRAW.pack(Op.WITHDRAW, self._lane, pending.number)
                self._remote.cast([number])
                pending.wait()
            (outcome,) = protocol.read(protocol.OUTCOME, pending.result())
        except TransportError as error:
            self.fail(error)
            with self._lock:
                self._refuse()
        if outcome == Outcome.FULL:
            raise queue.Full
        if outcome == Outcome.BROKEN:
            with self._lock:
                self._broken = True
                self._refuse()
