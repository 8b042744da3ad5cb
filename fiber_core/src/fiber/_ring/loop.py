"""One thread that waits for descriptors, for what other threads have for it, and for a time."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable


class Loop:
    """Calls what belongs to a descriptor, and what was posted, on the thread that runs it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._selector.register(self._read, selectors.EVENT_READ, self._clear)
        self._is_stopping = False

    def post(self, news: Callable[[], None]) -> None:
        """Have something called on the loop's thread; from any thread."""
        self._news.put(news)
        # a full pipe wakes it as well
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._write >= 0:
                os.write(self._write, b"!")

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Have something called whenever a descriptor can be read from."""
        if not self._is_stopping:
            self._selector.register(fd, selectors.EVENT_READ, action)

    def unwatch(self, fd: int) -> None:
        """Not any more; nothing where it was not watched."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def run(self, turn: Callable[[], float | None]) -> None:
        """Until it is stopped.

        Args:
            turn: called after whatever happened; returns the moment by which it must be again.
        """
        due = turn()
        while not self._is_stopping:
            left = None if due is None else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(left):
                # one that was called before may have ended the watch
                if key.fd in self._selector.get_map():
                    key.data()
            self.drain()
            due = turn()

    def drain(self) -> None:
        """Call what was posted."""
        while not self._news.empty():
            self._news.get()()

    def stop(self) -> None:
        """Return from :meth:`run` soon; on the loop's thread."""
        self._is_stopping = True

    def close(self) -> None:
        """Release its descriptors; what is posted afterwards is never called."""
        self._is_stopping = True
        with self._lock:
            if self._write >= 0:
                self._selector.close()
                os.close(self._read)
                os.close(self._write)
                self._read = self._write = -1

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
