"""Event loop on a thread: waits for descriptors and timers, and runs their callbacks."""

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


@values.define(eq=False)
class Timer:
    """Scheduled call; :meth:`cancel` may be called on any thread."""

    when: float
    action: Callable[[], Any] | None

    def cancel(self) -> None:
        """Do not call the action any more."""
        self.action = None


@values.define(eq=False)
class _Handlers:
    """Callbacks of a descriptor."""

    read: Callable[[], Any] | None
    write: Callable[[], Any] | None = None


class Reactor:
    """Event loop on a thread of its own: a process's handler thread; stopped by its owner.

    Actions run on its thread, one after another; an action that raises is logged and the others go
    on. ``call_soon``, ``call_later`` and ``stop`` may be called from any thread, also from within
    actions and from nng's threads.

    Args:
        name: of its thread.
        max_wait: longest wait of one round in seconds; a safety net, since every event wakes it.
    """

    def __init__(self, name: str = "fiber-handler", *, max_wait: float = 60.0) -> None:
        self._max_wait = max_wait
        self._selector = selectors.DefaultSelector()
        self._soon: deque[Callable[[], Any]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        # -1 once closed: an event may still come from one of nng's threads
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, _Handlers(self._drain_wake))
        self._awake = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """True on the reactor's own thread."""
        return threading.current_thread() is self._thread

    def call_soon(self, action: Callable[[], Any]) -> None:
        """Call ``action`` on the reactor's thread."""
        self._soon.append(action)
        self._wake()

    def call_later(self, delay: float, action: Callable[[], Any]) -> Timer:
        """Call ``action`` on the reactor's thread in ``delay`` seconds."""
        timer = Timer(time.monotonic() + delay, action)
        with self._lock:
            first = not self._timers or timer.when < self._timers[0][0]
            heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        if first:
            self._wake()
        return timer

    def add_reader(self, fd: int, action: Callable[[], Any]) -> None:
        """Call ``action`` whenever ``fd`` is readable."""
        self.call_soon(lambda: self._selector.register(fd, selectors.EVENT_READ, _Handlers(action)))

    def add_writer(self, fd: int, action: Callable[[], Any]) -> None:
        """On the reactor's thread: call ``action`` whenever ``fd``, which has a reader, is writable."""
        self._selector.get_key(fd).data.write = action
        self._selector.modify(
            fd, selectors.EVENT_READ | selectors.EVENT_WRITE, self._selector.get_key(fd).data
        )

    def remove_writer(self, fd: int) -> None:
        """On the reactor's thread: undo :meth:`add_writer`."""
        handlers = self._selector.get_key(fd).data
        handlers.write = None
        self._selector.modify(fd, selectors.EVENT_READ, handlers)

    def watch(
        self, fd: int, read: Callable[[], Any] | None, write: Callable[[], Any] | None
    ) -> None:
        """On the reactor's thread: set both callbacks of ``fd``; with neither it is removed."""
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        if not events:
            self._unregister(fd)
        elif fd in self._selector.get_map():
            self._selector.modify(fd, events, _Handlers(read, write))
        else:
            self._selector.register(fd, events, _Handlers(read, write))

    def remove_reader(self, fd: int) -> None:
        """Remove ``fd``; when this returns its action is not called any more.

        Must be called before the descriptor is closed.
        """
        self.call_and_wait(lambda: self._unregister(fd))

    def call_and_wait(self, action: Callable[[], Any]) -> None:
        """Run ``action`` on the reactor's thread, or on this one if that has ended, and wait for it."""
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
            # the thread may have ended before it ran the last calls
            if not self._thread.is_alive() and not done.is_set():
                act()

    def _unregister(self, fd: int) -> None:
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            # never registered, or removed already
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
        """In a process forked by user code, where the thread is missing: close the descriptors."""
        # another thread may have held the lock
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
                    handlers = key.data
                    if events & selectors.EVENT_READ and handlers.read is not None:
                        self._call(handlers.read)
                    if events & selectors.EVENT_WRITE and handlers.write is not None:
                        self._call(handlers.write)
                self._awake = False
                self._run_due()
                # only those queued when the round began: actions may queue more
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
                return self._max_wait
            return min(self._max_wait, max(0.0, self._timers[0][0] - time.monotonic()))

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
