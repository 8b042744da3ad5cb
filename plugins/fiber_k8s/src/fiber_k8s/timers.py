"""Delayed calls that can be cancelled, all on one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

__all__ = ["Timers"]

log = logging.getLogger("fiber")


class Timers:
    """Runs calls after a delay, one a key; thread-safe.

    The thread runs while calls are waiting.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._calls: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, key: Hashable, seconds: float, call: Callable[[], None]) -> None:
        """Schedule a call after some seconds, unless its key has one that is due sooner."""
        when = time.monotonic() + seconds
        with self._changed:
            if self._closed or (key in self._calls and self._calls[key][0] <= when):
                return
            self._calls[key] = (when, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def cancel(self, key: Hashable) -> None:
        """Cancel the call of a key, if there is one."""
        with self._changed:
            if self._calls.pop(key, None) is not None:
                self._changed.notify_all()

    def close(self) -> None:
        """Cancel all calls, and wait for the one that runs. Idempotent."""
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    # the next call starts another thread
                    self._thread = None
                    return
                key, (when, call) = min(self._calls.items(), key=lambda item: item[1][0])
                wait = when - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                del self._calls[key]
            try:
                call()
            except Exception:
                log.exception("fiber: a delayed call failed")
