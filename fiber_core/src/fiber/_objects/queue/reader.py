"""Reader of a queue or pipe of another process: prefetches items and reports progress."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fiber._base.threads import TURN, Deadline, turn
from fiber._objects import protocol
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.protocol import Mode, Notice, Op
from fiber._objects.queue.messages import Item
from fiber._objects.queue.progress import ProgressSlot
from fiber._wire.descriptors import ReadyFd
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.queue.bypass_socket import ReadingEnd
    from fiber._objects.queue.remote_channel import RemoteChannel

#: seconds of work at the present rate that are prefetched
_PREFETCH_SECONDS = 0.002
#: fewest items of one request where they come in memory: a few, so that one is read while others are asked for
_FEW_IN_MEMORY = 4
#: most items of one request
_MAX_PREFETCH = 2048
#: seconds within which items handed out are reported, where the owner needs to know
_REPORT_AFTER = 0.002
#: seconds that a thread waits for a standing request before the owner is asked to answer it
_STANDING_WAIT = 0.005


class _PendingRequest:
    """A request that the owner has not answered yet."""

    __slots__ = ("cancelled", "is_open", "mode", "sent")

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        #: True once the owner was asked to answer it at once
        self.cancelled = False
        self.sent = False
        self.is_open = True


class RemoteReader:
    """Reader of one direction, see :class:`~fiber._objects.handle.Reader`.

    Prefetched items are the queue's until :meth:`take` hands them out. The rate of ``take`` decides
    how many one request is for: one where it is slow. What was handed out is reported with the next
    request; at once, or nearly, where writers may wait for it, or where the owner could not see it
    if this process died suddenly (see :mod:`fiber._objects.queue.progress`).

    Locks: ``_lock`` guards the state. ``_wire`` is held over making and sending a message, so that
    messages arrive in the order in which they were made; the handler thread never takes it.
    """

    def __init__(
        self, remote: RemoteChannel, direction: int, slot: ProgressSlot, session: int
    ) -> None:
        self._remote = remote
        self._direction = direction
        #: number in the owner's answers; those to earlier readers of this process have another
        self.session = session
        self.slot = slot
        self._words, self._offset = slot.words, slot.offset
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wire = threading.Lock()
        self._buffer: deque[Item] = deque()
        # numbers of the last item that came, was handed out, and was reported as handed out
        self._delivered = self._returned = self._reported = 0
        self._request: _PendingRequest | None = None
        self._waiting = 0
        # threads that read the owner's messages themselves, or try to
        self._leading = 0
        self._ended = False
        self._closed = False
        self._error: PeerLostError | None = None
        self._ready_fd: ReadyFd | None = None
        # end of a bypass that is offered or open, and its number while it is open, or was and the owner is not told
        self._bypass: ReadingEnd | None = None
        self._open_number = 0
        # number of the last item before it, and of the last bypass that was left
        self._base = self._left_number = 0
        # True while the owner has items for the first request, see Notice.READY
        self._is_notified = False
        # for the rate: when the last items came, and how many
        self._since = 0.0
        self._batch = 0
        # fewest items of one request
        self._fewest = 1
        # True where progress is reported soon: at once after so many items, or in time
        maxsize = remote.shape.directions[direction].maxsize
        self._reports = bool(maxsize) or slot.index < 0
        self._report_after = max(1, maxsize // 4) if maxsize else _MAX_PREFETCH
        self._reported_at = 0.0
        # True while a timer is going to report
        self._report_is_scheduled = False
        # False where nothing else is to be done when an item is handed out
        self._has_work_after_take = self._reports

    # -- for handles

    def take(self, block: bool, timeout: float | None) -> Item:
        """Take the next item."""
        with self._lock:
            if not self._buffer and not self._fetch(block, timeout):
                raise queue.Empty
            if not self._buffer:
                self._raise_end()
            item = self._buffer.popleft()
            self._returned += 1
            self._words[self._offset] = self._returned
        if self._has_work_after_take:
            self._after_take()
        return item

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would return or raise EOFError; False when none came in time."""
        with self._lock:
            return self._fetch(timeout is None or timeout > 0, timeout)

    def ready_fd(self) -> ReadyFd:
        """Descriptor that is readable while :meth:`take` would not wait.

        From the first call on items are prefetched without a thread that waits.
        """
        with self._lock:
            if self._ready_fd is None:
                self._ready_fd = ReadyFd()
                self._has_work_after_take = True
                self._update_ready_fd()
                if self._bypass is not None:
                    self._leave_bypass()
            ready_fd = self._ready_fd
        self._request_standing()
        return ready_fd

    def fileno(self) -> int:
        """The number of that descriptor: selectors take what has one, as a queue's ``_reader``."""
        return self.ready_fd().fd

    def _raise_end(self) -> None:
        if self._error is not None:
            # a new one for each thread, which adds its own traceback
            raise PeerLostError(*self._error.args) from self._error
        raise EOFError

    def _fetch(self, block: bool, timeout: float | None) -> bool:
        """Wait until there is an item or never will be; False when none came. The lock is held."""
        deadline = None if timeout is None else Deadline(timeout)
        self._waiting += 1
        try:
            while not self._buffer:
                bypass = self._bypass
                if bypass is not None and bypass.number == self._open_number:
                    left = None if deadline is None else deadline.left
                    if not self._receive(bypass, left if block else 0):
                        if not block:
                            # only the owner knows that there is none
                            self._leave_bypass()
                        elif left == 0:
                            return self._is_ready
                    continue
                if self._ended or self._error is not None:
                    break
                if self._open_number:
                    # no end of that one is here: it is being given back, and before that nothing is asked for
                    self._changed.wait(TURN)
                    continue
                ask = self._request
                if ask is None:
                    ask = self._send_request(Mode.WAIT if block else Mode.NOWAIT)
                    while not block and ask.is_open and self._error is None:
                        self._changed.wait()
                    if not block:
                        return self._is_ready
                elif not block and not ask.cancelled:
                    # a request waits at the owner already, so there is no item
                    return False
                else:
                    self._wait(ask, deadline.left if block and deadline is not None else None)
                if block and deadline is not None and deadline.left == 0 and not self._is_ready:
                    if self._waiting == 1 and self._request is not None and self._ready_fd is None:
                        self._cancel(self._request)
                    return self._is_ready
            return True
        finally:
            self._waiting -= 1

    def _wait(self, ask: _PendingRequest, left: float | None) -> None:
        if ask.mode is not Mode.STANDING or ask.cancelled:
            seconds = TURN if left is None else turn(left)
            if not self._lead(ask, seconds) and self._request is ask and not self._is_ready:
                self._changed.wait(seconds)
        elif not self._changed.wait(_STANDING_WAIT if left is None else min(left, _STANDING_WAIT)):
            # answered, it is followed by a request of a thread that waits
            self._cancel(ask)

    def _receive(self, bypass: ReadingEnd, left: float | None) -> bool:
        """Receive an item through a bypass, or leave it; wait for that. False where nothing came. The lock is held."""
        try:
            item = bypass.receive(self._delivered + 1 - self._base)
            if item is not None:
                # no call between the two, after which an interrupt could come
                self._buffer += (item,)
                self._delivered += 1
                return True
        except EOFError:
            self._leave_bypass()
            return True
        except BaseException:
            # what was received is lost, and the owner has it
            bypass.close()
            raise
        if left == 0:
            return False
        with self._unlocked():
            bypass.wait(TURN if left is None else turn(left))
        return False

    def _leave_bypass(self) -> None:
        """Have the owner asked for items again. The lock is held, and given up meanwhile."""
        bypass = self._bypass
        # not here, where an interrupt may come before it is sent
        self._remote.submit(self.give_back)
        while self._bypass is bypass and self._error is None:
            self._changed.wait(TURN)
        if self._error is not None:
            # the owner is gone
            self._bypass = None

    def _lead(self, ask: _PendingRequest, seconds: float) -> bool:
        """Read the owner's messages until a request is answered; False where others read them."""

        def is_over() -> bool:
            is_ready = self._buffer or self._ended or self._error is not None
            return bool(is_ready) or self._request is not ask

        self._leading += 1
        self._lock.release()
        try:
            client = self._remote.client
            look = functools.partial(self._remote.look, self)
            return client is not None and client.wait(look, is_over, seconds, self._remote.target)
        finally:
            self._lock.acquire()
            self._leading -= 1

    def wake(self) -> None:
        """Have a thread look whether it has what it waits for: another one has changed something."""
        if self._leading:
            self._remote.wake()

    @property
    def _is_ready(self) -> bool:
        return bool(self._buffer) or self._ended or self._error is not None

    # -- requests; the lock is held, and given up while one is sent

    def _send_request(self, mode: Mode) -> _PendingRequest:
        ask = self._request = _PendingRequest(mode)
        self._is_notified = False

        def message() -> bytes:
            self._reported = self._returned
            return protocol.REQUEST.pack(
                Op.REQUEST,
                self._direction,
                mode,
                self._prefetch_count(),
                self._reported,
                self.session,
            )

        with self._unlocked():
            self._send(message)
        ask.sent = True
        return ask

    def _prefetch_count(self) -> int:
        if not self._batch:
            return 1
        took = time.monotonic() - self._since
        rate = self._batch / max(took, 1e-6)
        return max(self._fewest, min(_MAX_PREFETCH, int(rate * _PREFETCH_SECONDS)))

    def _cancel(self, ask: _PendingRequest) -> None:
        """Ask the owner to answer a waiting request at once."""
        if ask.sent and not ask.cancelled:
            ask.cancelled = True
            with self._unlocked():
                self._send(lambda: protocol.CANCEL.pack(Op.CANCEL, self._direction))

    def _send(self, make: Callable[[], bytes | None]) -> None:
        """Send the message that ``make`` returns, unless None; it is called with the lock held."""
        try:
            with self._wire:
                with self._lock:
                    message = make()
                if message is not None:
                    self._remote.cast([message])
        except TransportError as error:
            # what has come is handed out before the end is told
            client, fail = self._remote.client, functools.partial(self.fail, error)
            if client is None or not client.call_behind(fail):
                fail()

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _request_standing(self) -> None:
        """Send a request to the owner if a descriptor is to become readable with the next item."""
        with self._lock:
            idle = self._request is None and not self._is_ready and not self._waiting
            idle = idle and not self._is_notified
            if idle and self._ready_fd is not None and not self._closed:
                self._send_request(Mode.STANDING)

    # -- after an item was handed out

    def _after_take(self) -> None:
        report = later = stand = False
        with self._lock:
            if self._ready_fd is not None:
                self._update_ready_fd()
                stand = not self._buffer and self._request is None
            # a request reports as well
            if self._reports and not stand:
                many = self._returned - self._reported >= self._report_after
                report = many or time.monotonic() - self._reported_at >= _REPORT_AFTER
                later = not report and not self._report_is_scheduled
                self._report_is_scheduled = self._report_is_scheduled or later
        if stand:
            self._request_standing()
        elif report:
            self.report()
        elif later:
            self._remote.call_later(
                _REPORT_AFTER, functools.partial(self._remote.submit, self.report)
            )

    def report(self) -> None:
        """Report the items handed out to the owner."""

        def message() -> bytes | None:
            self._report_is_scheduled = False
            if self._reported == self._returned or self._closed or self._error is not None:
                return None
            if self._open_number:
                # the owner reads it in the page
                return None
            self._reported = self._returned
            self._reported_at = time.monotonic()
            return protocol.SETTLE.pack(Op.SETTLE, self._direction, self._reported)

        self._send(message)

    # -- messages and loss of the owner; on the handler thread

    def on_answer(self, notice: int, kept: bool, first: int, items: Sequence[Item]) -> bool:
        """Take an answer to a request: a ``Notice`` and its items; True where there are some."""
        with self._lock:
            if self._closed:
                # the owner takes them back when it learns that this end is closed
                return False
            self._is_notified = notice == Notice.READY
            if self._request is not None and not kept and notice != Notice.UNREADY:
                self._request.is_open = False
                self._request = None
            is_found = False
            if items:
                is_found = True
                if not self._delivered:
                    self._returned = self._reported = first - 1
                    self._words[self._offset] = first - 1
                last = first + len(items) - 1
                if last > self._delivered:
                    # no call between the two, after which an interrupt could come: see RemoteChannel.look
                    self._buffer += items
                    self._delivered = last
                self._since, self._batch = time.monotonic(), len(items)
                self._fewest = _FEW_IN_MEMORY if type(items[-1]) is ItemInMemory else 1
            elif notice == Notice.END:
                self._ended = True
            if self._waiting > self._leading:
                self._changed.notify_all()
            if self._ready_fd is None:
                return is_found
            self._update_ready_fd()
            stand = self._request is None and not self._waiting and not self._is_notified
        if stand:
            self._remote.submit(self._request_standing)
        return is_found

    def on_bypass(self, number: int, session: int, count: int) -> None:
        """Take what comes next, item ``count`` of a bypass, from there: in place of an answer to a request."""
        if session != self.session:
            return
        with self._lock:
            if self._request is not None:
                self._request.is_open = False
                self._request = None
            self._open_number, self._base = number, self._delivered + 1 - count
            bypass = self._bypass
            leave = bypass is None or bypass.number != number or self._has_work_after_take
            self._changed.notify_all()
        if leave:
            self._remote.submit(self.give_back)
        self.wake()

    def keep_bypass(self, bypass: ReadingEnd) -> None:
        """Keep an end that the owner may open."""
        with self._lock:
            is_late = self._open_number or bypass.number <= self._left_number
            if not (self._closed or is_late):
                self._bypass = bypass

    def on_unseen(self) -> None:
        """Report from now on: the owner cannot map the progress page."""
        with self._lock:
            self._reports = self._has_work_after_take = True

    def report_at_once(self) -> None:
        """Report every item from now on: the owner is about to end."""
        with self._lock:
            self._report_after = 1
            self._reports = self._has_work_after_take = True
        self._remote.submit(self.report)

    def fail(self, error: BaseException) -> None:
        """Fail every take from now on: the owner is gone, or the object is."""
        lost = self._remote.loss_error(error)
        with self._lock:
            if self._error is None:
                self._error = lost
            self._request = None
            if self._bypass is not None:
                # what is in it is handed out, too
                self._bypass.close()
            if not self._remote.is_same_host:
                # other readers may have them by now
                self._buffer.clear()
            self._update_ready_fd()
            self._changed.notify_all()
        self.wake()

    # -- giving back; not on the handler thread

    def give_back(self) -> None:
        """Give prefetched items back: another reader waits, or this process ends."""

        def message() -> bytes:
            after, upto = self._returned, self._delivered
            self._buffer.clear()
            self._returned = self._reported = upto
            if after < upto:
                # else what was noted last stays, of which the owner may not have heard
                self.slot.note_given_back(after, upto)
            self._update_ready_fd()
            bypass, self._bypass = self._bypass, None
            number, self._open_number = self._open_number, 0
            self._left_number = max(number, self._left_number)
            if bypass is not None:
                bypass.close()
            self._changed.notify_all()
            return protocol.GIVE_BACK.pack(Op.GIVE_BACK, self._direction, after, upto, number)

        self._send(message)
        if self._ready_fd is not None:
            self._request_standing()

    def close(self) -> None:
        """Give prefetched items back and fail threads that wait."""
        self.give_back()
        with self._lock:
            self._closed = True
            self._error = self._error or PeerLostError("this handle was closed")
            self._changed.notify_all()
            if self._ready_fd is not None:
                self._ready_fd.close()
                self._ready_fd = None
        self.wake()

    def _update_ready_fd(self) -> None:
        if self._ready_fd is not None:
            self._ready_fd.set(self._is_ready or self._is_notified)
