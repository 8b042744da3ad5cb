"""Event loop on a thread of its own, which takes calls from others."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from fiber._base.loop import Loop, Timer

__all__ = ["Reactor", "Timer"]

log = logging.getLogger("fiber")


class Reactor(Loop):
    """Event loop on a thread of its own: a process's handler thread; stopped by its owner.

    Actions run on its thread, one after another; an action that raises is logged and the others go
    on. ``call_soon``, ``call_later``, ``add_reader``, ``remove_reader`` and ``stop`` may be called from
    any thread, also from within actions and from nng's threads; all else from the reactor's.

    Args:
        name: of its thread.
        max_wait: longest wait of one round in seconds; a safety net, since every event wakes it.
    """

    def __init__(self, name: str = "fiber-handler", *, max_wait: float = 60.0) -> None:
        super().__init__()
        self._max_wait = max_wait
        self._soon: deque[Callable[[], Any]] = deque()
        # of the timers and the wake-up pipe
        self._lock = threading.Lock()
        # -1 once closed: an event may still come from one of nng's threads
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.on_readable(self._wake_read, self._drain_wake)
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

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Timer:
        """Run ``callback`` on the reactor's thread in ``delay`` seconds."""
        with self._lock:
            timer = super().call_later(delay, callback)
            is_first = self._timers[0][2] is timer
        if is_first:
            self._wake()
        return timer

    def add_reader(self, fd: int, action: Callable[[], Any]) -> None:
        """Call ``action`` whenever ``fd`` is readable."""
        self.call_soon(lambda: self.on_readable(fd, action))

    def remove_reader(self, fd: int) -> None:
        """Remove ``fd``; when this returns its action is not called any more.

        Must be called before the descriptor is closed.
        """
        self.call_and_wait(lambda: self.forget(fd))

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
        self.close()
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
                self.run_once()
        finally:
            self._release()

    def run_once(self) -> None:
        """Wait for the next event, and run what is due and what was posted."""
        super().run_once()
        self._awake = False
        # only those queued when the round began: actions may queue more
        for _ in range(len(self._soon)):
            self._call(self._soon.popleft())

    def _timeout(self) -> float:
        if self._soon:
            return 0.0
        with self._lock:
            wait = super()._timeout()
        return self._max_wait if wait is None else min(self._max_wait, wait)

    def _due(self) -> list[Timer]:
        with self._lock:
            return super()._due()

    def _call(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except BaseException:  # sys.exit() of a user's callback ends no thread of ours
            log.exception("fiber: an event handler failed; the others go on")
