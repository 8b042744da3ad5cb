"""The reading side of a lane in another process than its owner's."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fiber._objects import protocol
from fiber._objects.protocol import Mode, Op, Word
from fiber._objects.queue.messages import Item
from fiber._objects.queue.progress import Slot
from fiber._objects.queue.ready_fd import Bell
from fiber._objects.waiting import Deadline
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.queue.remote_channel import RemoteChannel

#: seconds of work at the present rate that are fetched at once
_AHEAD = 0.002
#: most items that are fetched at once
_MOST = 2048
#: seconds that an owner, where it must be told, waits to hear what was handed out
_TELL = 0.002
#: seconds that a thread waits for what a request that nobody waited for may bring
_STANDS = 0.005


class _Ask:
    """A request at the owner, or on its way there."""

    __slots__ = ("cancelled", "is_open", "mode", "sent")

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        #: True once the owner was asked to answer it at once
        self.cancelled = False
        self.sent = False
        self.is_open = True


class RemoteSource:
    """Items parked here are the owner's until :meth:`take` hands them out.

    The rate of ``take`` decides how many are asked for at once: one where it is slow. What was
    handed out is told with the next request; at once, or nearly, where writers may wait for it or
    where the owner could not see it after our sudden death (see :mod:`fiber._objects.queue.progress`).

    Locks: ``_lock`` guards the state. ``_wire`` is held over making and sending a message, so that
    messages arrive in the order in which they were made; the handler thread never takes it.
    """

    def __init__(self, remote: RemoteChannel, lane: int, slot: Slot, session: int) -> None:
        self._remote = remote
        self._lane = lane
        #: what the owner's answers to us are marked with
        self.session = session
        self.slot = slot
        self._words, self._at = slot.words, slot.at
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wire = threading.Lock()
        self._buffer: deque[Item] = deque()
        # numbers of the last item that came, was handed out, and was told to be handed out
        self._delivered = self._returned = self._told = 0
        self._ask: _Ask | None = None
        self._waiting = 0
        self._ended = False
        self._closed = False
        self._error: PeerLostError | None = None
        self._bell: Bell | None = None
        # True while the owner has something for whoever asks for it first
        self._noticed = False
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
        """The next item, see :class:`~fiber._objects.handle.Source`."""
        with self._lock:
            if not self._buffer and not self._fetch(block, timeout):
                raise queue.Empty
            if not self._buffer:
                self._raise_end()
            item = self._buffer.popleft()
            self._returned += 1
            self._words[self._at] = self._returned
        if self._extra:
            self._after_take()
        return item

    def ready(self, timeout: float | None) -> bool:
        """True where :meth:`take` would return or raise EOFError."""
        with self._lock:
            return self._fetch(timeout is None or timeout > 0, timeout)

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

    def _raise_end(self) -> None:
        if self._error is not None:
            # a new one for each thread: they add their own tracebacks
            raise PeerLostError(*self._error.args) from self._error
        raise EOFError

    def _fetch(self, block: bool, timeout: float | None) -> bool:
        """Wait until there is an item or never will be; with the lock held."""
        deadline = Deadline(timeout)
        self._waiting += 1
        try:
            while not self._is_ready:
                ask = self._ask
                if ask is None:
                    ask = self._send_ask(Mode.WAIT if block else Mode.NOWAIT)
                    while not block and ask.is_open and self._error is None:
                        self._changed.wait()
                    if not block:
                        return self._is_ready
                elif not block and not ask.cancelled:
                    # a request waits at the owner already, so there is nothing
                    return False
                else:
                    self._wait(ask, deadline.left if block else None)
                if block and deadline.left == 0 and not self._is_ready:
                    if self._waiting == 1 and self._ask is not None and self._bell is None:
                        self._cancel(self._ask)
                    return self._is_ready
            return True
        finally:
            self._waiting -= 1

    def _wait(self, ask: _Ask, left: float | None) -> None:
        if ask.mode is not Mode.STANDING or ask.cancelled:
            self._changed.wait(left)
        elif not self._changed.wait(_STANDS if left is None else min(left, _STANDS)):
            # the owner is to know that a thread waits now
            self._cancel(ask)

    @property
    def _is_ready(self) -> bool:
        return bool(self._buffer) or self._ended or self._error is not None

    # -- requests; the lock is held, and given up while one is sent

    def _send_ask(self, mode: Mode) -> _Ask:
        ask = self._ask = _Ask(mode)
        self._noticed = False

        def message() -> bytes:
            self._told = self._returned
            return protocol.ASK.pack(
                Op.ASK, self._lane, mode, self._want(), self._told, self.session
            )

        with self._unlocked():
            self._send(message)
        ask.sent = True
        return ask

    def _want(self) -> int:
        if not self._batch:
            return 1
        took = time.monotonic() - self._since
        rate = self._batch / max(took, 1e-6)
        return max(1, min(_MOST, int(rate * _AHEAD)))

    def _cancel(self, ask: _Ask) -> None:
        """Have the owner answer the request that waits there."""
        if ask.sent and not ask.cancelled:
            ask.cancelled = True
            with self._unlocked():
                self._send(lambda: protocol.CANCEL.pack(Op.CANCEL, self._lane))

    def _send(self, make: Callable[[], bytes | None]) -> None:
        """Send the message that ``make`` makes with the lock held, if it does."""
        try:
            with self._wire:
                with self._lock:
                    message = make()
                if message is not None:
                    self._remote.cast([message])
        except TransportError as error:
            self.fail(error)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _stand(self) -> None:
        """Where a descriptor is to tell of items: have a request at the owner."""
        with self._lock:
            idle = self._ask is None and not self._is_ready and not self._waiting
            idle = idle and not self._noticed
            if idle and self._bell is not None and not self._closed:
                self._send_ask(Mode.STANDING)

    # -- after an item was handed out

    def _after_take(self) -> None:
        tell = later = stand = False
        with self._lock:
            if self._bell is not None:
                self._ring()
                stand = not self._buffer and self._ask is None
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

        def message() -> bytes | None:
            self._telling = False
            if self._told == self._returned or self._closed or self._error is not None:
                return None
            self._told = self._returned
            self._told_at = time.monotonic()
            return protocol.SETTLE.pack(Op.SETTLE, self._lane, self._told)

        self._send(message)

    # -- what the owner says, on the handler thread

    def answered(self, word: int, kept: bool, first: int, came: Sequence[Item]) -> None:
        """An answer to a request."""
        with self._lock:
            if self._closed:
                # the owner takes them back when it hears that we are closed
                return
            self._noticed = word == Word.READY
            if self._ask is not None and not kept and word != Word.UNREADY:
                self._ask.is_open = False
                self._ask = None
            if came:
                if not self._delivered:
                    self._returned = self._told = first - 1
                    self._words[self._at] = first - 1
                self._delivered = first + len(came) - 1
                self._buffer.extend(came)
                self._since, self._batch = time.monotonic(), len(came)
            elif word == Word.END:
                self._ended = True
            self._ring()
            self._changed.notify_all()
            idle = self._ask is None and not self._waiting and not self._noticed
            stand = self._bell is not None and idle
        if stand:
            self._remote.soon(self._stand)

    def unseen(self) -> None:
        """The owner cannot see what is handed out: it is to be told in time."""
        with self._lock:
            self._tells = self._extra = True

    def hurry(self) -> None:
        """The owner is about to end: tell at once."""
        with self._lock:
            self._tell_after = 1
            self._tells = self._extra = True
        self._remote.soon(self.tell)

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

    # -- what goes back; not on the handler thread

    def give_back(self) -> None:
        """Another reader waits, or this process ends: give back what was not handed out."""

        def message() -> bytes:
            after, upto = self._returned, self._delivered
            self._buffer.clear()
            self._returned = self._told = upto
            self.slot.gave(after, upto)
            self._ring()
            return protocol.GIVE.pack(Op.GIVE, self._lane, after, upto)

        self._send(message)
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

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.set(self._is_ready or self._noticed)
