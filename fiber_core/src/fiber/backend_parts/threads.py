"""Threads that make slow calls of a platform, so that their callers do not wait, and calls after a delay."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable

from fiber._base.threads import Reactor, Timer

__all__ = ["ThreadPool", "Timers", "run_at_once"]

log = logging.getLogger("fiber")


class ThreadPool:
    """Fixed number of threads that run calls until :meth:`close`.

    They are started with the first call: at the interpreter's end, when jobs are removed, no thread
    can be started any more. An exception of a call is logged.

    Args:
        backend: name of the backend, for the threads' names.
        platform: name of the platform in the log message about a failed call.
        count: number of threads; no more than calls that the platform takes at once.
    """

    def __init__(self, backend: str, platform: str, count: int) -> None:
        self._backend = backend
        self._platform = platform
        self._count = count
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call on one of the threads; after :meth:`close`, on the caller's."""
        with self._lock:
            if not self._closed:
                self._start()
                self._calls.put(call)
                return
        call()

    def run_all(self, calls: list[Callable[[], None]]) -> None:
        """Run calls on the threads, and wait until all have ended."""
        done = threading.Semaphore(0)

        def counted(call: Callable[[], None]) -> None:
            try:
                call()
            finally:
                done.release()

        for call in calls:
            self.submit(lambda call=call: counted(call))  # type: ignore[misc] # mypy does not infer it
        for _ in calls:
            done.acquire()

    def close(self) -> None:
        """Wait for the submitted calls, and end the threads. Idempotent."""
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


class Timers:
    """Thread that runs calls after a delay, one a key; thread-safe.

    It starts with the first call. An exception of a call is logged.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: dict[Hashable, Timer] = {}
        self._reactor: Reactor | None = None
        self._closed = False

    def set(self, key: Hashable, seconds: float, call: Callable[[], object]) -> None:
        """Schedule a call after some seconds, unless its key has one that is due sooner."""

        def run() -> None:
            with self._lock:
                if self._calls.get(key) is not timer:
                    return
                del self._calls[key]
            call()

        with self._lock:
            before = self._calls.get(key)
            if self._closed or (before and before.when <= time.monotonic() + seconds):
                return
            if before:
                before.cancel()
            if self._reactor is None:
                self._reactor = Reactor(self._name)
            timer = self._calls[key] = self._reactor.call_later(seconds, run)

    def cancel(self, key: Hashable) -> None:
        """Cancel the call of a key, if there is one."""
        with self._lock:
            timer = self._calls.pop(key, None)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel all calls, and wait for the one that runs. Idempotent."""
        with self._lock:
            self._closed = True
            self._calls.clear()
            reactor = self._reactor
        if reactor is not None:
            reactor.stop(None)


def run_at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Run each call on a thread of its own, and wait until all have ended; they raise nothing."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
