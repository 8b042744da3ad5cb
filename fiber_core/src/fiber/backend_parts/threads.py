"""A few threads that make slow calls of a platform, so that nobody waits for them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

__all__ = ["Hands"]

log = logging.getLogger("fiber")


class Hands:
    """Runs calls in threads that are there until :meth:`close`.

    They are started with the first call: at the interpreter's end, when jobs are removed, no thread
    can be started any more.

    Args:
        backend: name of the backend.
        platform: what is called, in words, where a call fails.
        count: how many threads; no more than calls that the platform takes at once.
    """

    def __init__(self, backend: str, platform: str, count: int) -> None:
        self._backend = backend
        self._platform = platform
        self._count = count
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def do(self, call: Callable[[], None]) -> None:
        """Run a call soon; after :meth:`close`, at once."""
        with self._lock:
            if not self._closed:
                self._start()
                self._calls.put(call)
                return
        call()

    def do_all(self, calls: list[Callable[[], None]]) -> None:
        """Run calls and wait for their end."""
        done = threading.Semaphore(0)

        def counted(call: Callable[[], None]) -> None:
            try:
                call()
            finally:
                done.release()

        for call in calls:
            self.do(lambda call=call: counted(call))  # type: ignore[misc] # mypy does not infer it
        for _ in calls:
            done.acquire()

    def close(self) -> None:
        """Wait for the calls that were asked for, and end the threads. Idempotent."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._calls.put(None)
        for thread in threads:
            thread.join()

    def _start(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(
                    target=self._work, name=f"fiber-{self._backend}-{number}", daemon=True
                )
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                log.exception("fiber: a call of %s failed", self._platform)
