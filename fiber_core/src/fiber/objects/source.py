"""The reading side of a lane in another process than its owner's."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from fiber.exceptions import PeerLostError, TransportError
from fiber.objects import items, protocol
from fiber.objects.bell import Bell
from fiber.objects.items import Item
from fiber.objects.progress import Slot
from fiber.objects.protocol import Answer, Mode, Op
from fiber.objects.waiting import Deadline

if TYPE_CHECKING:
    from fiber.objects.remote import Remote
    from fiber.transport.client import Pending

#: seconds of work at the present rate that are fetched at once
_AHEAD = 0.002
#: most items that are fetched at once
_MOST = 2048
#: seconds that an owner, where it must be told, waits to hear what was handed out
_TELL = 0.002


class _Ask:
    """A request on its way."""

    __slots__ = ("answered", "cancelled", "mode")

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        #: True once the owner was asked to answer it at once
        self.cancelled = False
        self.answered = False


class RemoteSource:
    """Items parked here are the owner's until :meth:`take` hands them out.

    The rate of ``take`` decides how many are fetched at once: one where it is slow. What was handed
    out is told with the next request; at once, or nearly, where writers may wait for it or where
    the owner could not see it after our sudden death (see :mod:`fiber.objects.progress`).

    Locks: ``_lock`` guards the state. ``_wire`` is held over making and sending a message, so that
    messages arrive in the order in which they were made; the handler thread never takes it.
    """

    def __init__(self, remote: Remote, lane: int, slot: Slot) -> None:
        self._remote = remote
        self._lane = lane
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wire = threading.Lock()
        self._buffer: deque[Item] = deque()
        self.slot = slot
        self._words, self._at = slot.words, slot.at
        # numbers of the last item that came, was handed out, and was told to be handed out
        self._delivered = self._returned = self._told = 0
        self._began = False
        self._ask: _Ask | None = None
        self._waiting = 0
        self._ended = False
        self._closed = False
        self._error: PeerLostError | None = None
        self._bell: Bell | None = None
        # what the rate is measured by: when the last items came, and how many
        self._since = 0.0
        self._batch = 0
        # where the owner is to hear soon what was handed out: at once after so many, or in time
        maxsize = remote.shape.lanes[lane].maxsize
        self._tells = bool(maxsize) or slot.index < 0
        self._tell_after = max(1, maxsize // 4) if maxsize else _MOST
        self._told_at = 0.0
        # True while a timer is going to tell
        self._telling = False
        # False where an item is handed out without another thought
        self._extra = self._tells

    # -- the user's threads

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item, see :class:`~fiber.objects.ends.Source`."""
        with self._lock:
            if self._buffer:
                item = self._buffer.popleft()
                self._returned += 1
                self._words[self._at] = self._returned
            else:
                item = self._take_slowly(block, Deadline(timeout))
        if self._extra:
            self._after_take()
        return item

    def ready(self, timeout: float | None) -> bool:
        """True where :meth:`take` would return or raise EOFError."""
        with self._lock:
            now = timeout is not None and timeout <= 0
            return self._fetch(not now, Deadline(timeout))

    def bell(self) -> Bell:
        """What tells of items; from now on they are fetched before anybody waits for them."""
        with self._lock:
            if self._bell is None:
                self._bell = Bell()
                self._extra = True
                self._ring()
            bell = self._bell
        self._stand()
        return bell

    def _take_slowly(self, block: bool, deadline: Deadline) -> Item:
        if not self._fetch(block, deadline):
            raise queue.Empty
        if self._buffer:
            self._returned += 1
            self._words[self._at] = self._returned
            return self._buffer.popleft()
        if self._error is not None:
            # a new one for each thread: they add their own tracebacks
            raise type(self._error)(*self._error.args) from self._error
        raise EOFError

    def _fetch(self, block: bool, deadline: Deadline) -> bool:
        """Wait until there is an item or never will be; with the lock held."""
        mode = Mode.WAIT if block else Mode.NOWAIT
        self._waiting += 1
        try:
            while not self._is_ready:
                ask = self._ask
                if ask is None:
                    ask = self._send_ask(mode)
                    while not block and not ask.answered and self._error is None:
                        self._changed.wait()
                    if not block:
                        return self._is_ready
                elif ask.cancelled:
                    # its answer comes at once
                    self._changed.wait(deadline.left if block else None)
                elif not block:
                    # a request waits at the owner already, so there is nothing
                    return False
                elif ask.mode is Mode.STANDING:
                    # the owner is to know that a thread waits now
                    self._cancel(ask)
                else:
                    self._changed.wait(deadline.left)
                if block and deadline.left == 0 and not self._is_ready:
                    if self._waiting == 1 and self._ask is not None:
                        self._cancel(self._ask)
                    return self._is_ready
            return True
        finally:
            self._waiting -= 1

    @property
    def _is_ready(self) -> bool:
        return bool(self._buffer) or self._ended or self._error is not None

    # -- requests; the lock is held and given up while one is sent

    def _send_ask(self, mode: Mode) -> _Ask:
        ask = self._ask = _Ask(mode)
        self._lock.release()
        try:
            with self._wire:
                with self._lock:
                    want = self._want()
                    self._told = self._returned
                head = protocol.ASK.pack(Op.ASK, self._lane, mode, want, self._told)
                pending = self._remote.call([head])
                pending.then(functools.partial(self._answered, ask))
        except TransportError as error:
            self.fail(error)
        finally:
            self._lock.acquire()
        return ask

    def _want(self) -> int:
        if not self._batch:
            return 1
        took = time.monotonic() - self._since
        rate = self._batch / max(took, 1e-6)
        return max(1, min(_MOST, int(rate * _AHEAD)))

    def _cancel(self, ask: _Ask) -> None:
        """Have the owner answer the request that waits there."""
        if ask.cancelled:
            return
        ask.cancelled = True
        self._lock.release()
        try:
            with self._wire:
                self._remote.cast([protocol.CANCEL.pack(Op.CANCEL, self._lane)])
        except TransportError as error:
            self.fail(error)
        finally:
            self._lock.acquire()

    def _answered(self, ask: _Ask, pending: Pending) -> None:
        """On the handler thread: the answer to a request."""
        try:
            body = pending.result()
            answer, first = protocol.read(protocol.ANSWER, body)
            came = items.unpack(body[protocol.ANSWER.size :]) if answer == Answer.ITEMS else []
        except TransportError as error:
            self.fail(error)
            return
        with self._lock:
            if ask.answered:
                return
            ask.answered = True
            if self._ask is ask:
                self._ask = None
            if self._closed:
                # the owner took them back when it heard that we are closed
                return
            if came:
                if not self._began:
                    self._began = True
                    self._returned = self._told = first - 1
                    self._words[self._at] = first - 1
                self._delivered = first + len(came) - 1
                self._buffer.extend(came)
                self._since, self._batch = time.monotonic(), len(came)
            elif answer == Answer.END:
                self._ended = True
            self._ring()
            self._changed.notify_all()
            stand = self._bell is not None and not self._buffer and not self._waiting
        if stand and answer == Answer.NOTHING:
            self._remote.soon(self._stand)

    # -- after an item was handed out

    def _after_take(self) -> None:
        tell = later = stand = False
        with self._lock:
            if self._bell is not None:
                self._ring()
                stand = not self._buffer
            # a request tells it as well
            if self._tells and not stand:
                many = self._returned - self._told >= self._tell_after
                tell = many or time.monotonic() - self._told_at >= _TELL
                later = not tell and not self._telling
                self._telling = self._telling or later
        if stand:
            self._stand()
        elif tell:
            self.tell()
        elif later:
            self._remote.call_later(_TELL, functools.partial(self._remote.soon, self.tell))

    def tell(self) -> None:
        """Say what was handed out."""
        with self._wire:
            with self._lock:
                self._telling = False
                if self._told == self._returned or self._closed or self._error is not None:
                    return
                self._told = self._returned
                self._told_at = time.monotonic()
            with contextlib.suppress(PeerLostError):
                self._remote.cast([protocol.SETTLE.pack(Op.SETTLE, self._lane, self._told)])

    def _stand(self) -> None:
        """Where a descriptor is to tell of items: have a request at the owner."""
        with self._lock:
            idle = self._ask is None and not self._buffer and not self._waiting
            if idle and not self._ended and self._error is None and not self._closed:
                self._send_ask(Mode.STANDING)

    # -- what the owner says

    def hurry(self) -> None:
        """The owner is about to end: tell at once."""
        with self._lock:
            self._tell_after = 1
            self._tells = self._extra = True
        self._remote.soon(self.tell)

    def give_back(self) -> None:
        """Another reader waits: give back what was not handed out; not on the handler thread."""
        with self._wire:
            with self._lock:
                after, upto = self._returned, self._delivered
                self._buffer.clear()
                self._returned = self._told = upto
                self.slot.gave(after, upto)
                self._ring()
            with contextlib.suppress(PeerLostError):
                self._remote.cast([protocol.GIVE.pack(Op.GIVE, self._lane, after, upto)])
        if self._bell is not None:
            self._stand()

    def close(self) -> None:
        """Nobody here reads any more; what was not handed out goes back."""
        self.give_back()
        with self._lock:
            self._closed = True
            self._error = self._error or PeerLostError("this handle was closed")
            self._changed.notify_all()
            if self._bell is not None:
                self._bell.close()
                self._bell = None

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is."""
        lost = self._remote.loss(error)
        with self._lock:
            if self._error is None:
                self._error = lost
            self._ask = None
            if not self._remote.is_near:
                # somebody else may have them by now
                self._buffer.clear()
            self._ring()
            self._changed.notify_all()

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.set(bool(self._buffer) or self._ended or self._error is not None)
