"""Calls at their time, unless they are taken back: one thread for all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

__all__ = ["Deadlines"]

log = logging.getLogger("fiber")


class Deadlines:
    """Runs calls after so many seconds; one a key; thread-safe. The thread is there while needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._calls: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, key: Hashable, seconds: float, call: Callable[[], None]) -> None:
        """Have a call run, unless its key has one already that comes sooner."""
        when = time.monotonic() + seconds
        with self._changed:
            if self._closed or (key in self._calls and self._calls[key][0] <= when):
                return
            self._calls[key] = (when, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drop(self, key: Hashable) -> None:
        """Take a call back."""
        with self._changed:
            if self._calls.pop(key, None) is not None:
                self._changed.notify_all()

    def close(self) -> None:
        """Take all back, and wait for the one that runs. Idempotent."""
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
                    # the next one starts another
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
                log.exception("fiber: what was to happen at its time failed")
