"""Event loop on a thread of its own, which takes calls from others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fiber._base.log import lazy_logger
from fiber._base.loop import SharedLoop, Timer

__all__ = ["Reactor", "Timer"]

log = lazy_logger()


class Reactor(SharedLoop):
    """Event loop on a thread of its own: a process's handler thread; stopped by its owner.

    Actions run on its thread, one after another; an action that raises is logged and the others go
    on. ``call_soon``, ``call_later``, ``add_reader``, ``remove_reader`` and ``stop`` may be called from
    any thread, also from within actions and from nng's threads; all else from the reactor's.

    Args:
        name: of its thread.
        max_wait: longest wait of one round in seconds; a safety net, since every event wakes it.
    """

    def __init__(self, name: str = "fiber-handler", *, max_wait: float = 60.0) -> None:
        super().__init__(max_wait)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """True on the reactor's own thread."""
        return threading.current_thread() is self._thread

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
        super().stop()
        if not self.is_current:
            self._thread.join(10)

    def abandon(self) -> None:
        """In a process forked by user code, where the thread is missing: close the descriptors."""
        # another thread may have held the lock
        self._lock = threading.Lock()
        self._stopping = True
        self.close()

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self.close()

    def _call(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except BaseException:  # sys.exit() of a user's callback ends no thread of ours
            log.exception("fiber: an event handler failed; the others go on")
