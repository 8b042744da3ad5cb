"""One thread that waits for descriptors and times, and calls what belongs to them."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fiber._base import values

log = logging.getLogger("fiber")

#: longest wait of one round; a safety net only, every event wakes the reactor
_LONGEST = 60.0


@values.define(eq=False)
class Timer:
    """A call at a time; :meth:`cancel` it from any thread."""

    when: float
    action: Callable[[], Any] | None

    def cancel(self) -> None:
        """Do not call it any more."""
        self.action = None


@values.define(eq=False)
class _Interest:
    """What to call for a descriptor."""

    read: Callable[[], Any] | None
    write: Callable[[], Any] | None = None


class Reactor:
    """The handler thread of one process: started once, stopped by its owner.

    Actions run on its thread, one after another; an action that raises is logged and the others go
    on. ``call_soon``, ``call_later`` and ``stop`` may be called from any thread, also from within
    actions and from nng's threads.
    """

    def __init__(self, name: str = "fiber-handler") -> None:
        self._selector = selectors.DefaultSelector()
        self._soon: deque[Callable[[], Any]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        # -1 once closed: an event may still come from one of nng's threads
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, _Interest(self._drain_wake))
        self._awake = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """True on the reactor's own thread."""
        return threading.current_thread() is self._thread

    def call_soon(self, action: Callable[[], Any]) -> None:
        """Have ``action`` called on the reactor's thread."""
        self._soon.append(action)
        self._wake()

    def call_later(self, delay: float, action: Callable[[], Any]) -> Timer:
        """Have ``action`` called on the reactor's thread in ``delay`` seconds."""
        timer = Timer(time.monotonic() + delay, action)
        with self._lock:
            first = not self._timers or timer.when < self._timers[0][0]
            heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        if first:
            self._wake()
        return timer

    def add_reader(self, fd: int, action: Callable[[], Any]) -> None:
        """Have ``action`` called whenever ``fd`` is readable."""
        self.call_soon(lambda: self._selector.register(fd, selectors.EVENT_READ, _Interest(action)))

    def add_writer(self, fd: int, action: Callable[[], Any]) -> None:
        """On the reactor's thread: have ``action`` called too whenever a read ``fd`` takes bytes."""
        self._selector.get_key(fd).data.write = action
        self._selector.modify(
            fd, selectors.EVENT_READ | selectors.EVENT_WRITE, self._selector.get_key(fd).data
        )

    def remove_writer(self, fd: int) -> None:
        """On the reactor's thread: undo :meth:`add_writer`."""
        interest = self._selector.get_key(fd).data
        interest.write = None
        self._selector.modify(fd, selectors.EVENT_READ, interest)

    def watch(
        self, fd: int, read: Callable[[], Any] | None, write: Callable[[], Any] | None
    ) -> None:
        """On the reactor's thread: what to call for ``fd`` from now on; nothing forgets it."""
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        if not events:
            self._forget(fd)
        elif fd in self._selector.get_map():
            self._selector.modify(fd, events, _Interest(read, write))
        else:
            self._selector.register(fd, events, _Interest(read, write))

    def remove_reader(self, fd: int) -> None:
        """Forget ``fd``; when this returns its action is not called any more.

        Must be called before the descriptor is closed.
        """
        self.call_and_wait(lambda: self._forget(fd))

    def call_and_wait(self, action: Callable[[], Any]) -> None:
        """Have ``action`` called on the reactor's thread, or here once that has ended."""
        if self.is_current:
            action()
            return
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self.call_soon(act)
        while not done.wait(0.5):
            # the thread may have ended without a look at what came last
            if not self._thread.is_alive() and not done.is_set():
                act()

    def _forget(self, fd: int) -> None:
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            # never registered, or forgotten already: the wish is fulfilled
            return

    def stop(self) -> None:
        """End the thread and release its descriptors; idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._wake()
        if not self.is_current:
            self._thread.join(10)

    def abandon(self) -> None:
        """In a process forked by the user, which has no such thread: close the descriptors."""
        # another thread may have held it
        self._lock = threading.Lock()
        self._stopping = True
        self._release()

    def _release(self) -> None:
        with self._lock:
            descriptors = self._wake_read, self._wake_write
            self._wake_read = self._wake_write = -1
        self._selector.close()
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)

    def _wake(self) -> None:
        if self._awake or self.is_current:
            return
        self._awake = True
        with self._lock:
            if self._wake_write < 0:
                return
            try:
                os.write(self._wake_write, b"\0")
            except BlockingIOError:
                # full: it is about to wake
                return

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, events in self._selector.select(self._timeout()):
                    interest = key.data
                    if events & selectors.EVENT_READ and interest.read is not None:
                        self._call(interest.read)
                    if events & selectors.EVENT_WRITE and interest.write is not None:
                        self._call(interest.write)
                self._awake = False
                self._run_due()
                # only what was there when the round began: actions may add more
                for _ in range(len(self._soon)):
                    self._call(self._soon.popleft())
        finally:
            self._release()

    def _timeout(self) -> float:
        if self._soon:
            return 0.0
        with self._lock:
            while self._timers and self._timers[0][2].action is None:
                heapq.heappop(self._timers)
            if not self._timers:
                return _LONGEST
            return min(_LONGEST, max(0.0, self._timers[0][0] - time.monotonic()))

    def _run_due(self) -> None:
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > now:
                    return
                _, _, timer = heapq.heappop(self._timers)
            action, timer.action = timer.action, None
            if action is not None:
                self._call(action)

    def _call(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except BaseException:  # sys.exit() of a user's callback ends no thread of ours
            log.exception("fiber: an event handler failed; the others go on")
