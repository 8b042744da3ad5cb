"""An executor with one thread: actions that must not hold up their caller run there, in order.

Runs users' callbacks one after another, on a thread that starts with the first.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("fiber")


class SerialExecutor:
    """Runs actions in order on a thread of its own.

    ``submit`` takes no lock that the caller may hold, so that a finalizer may call it whenever the
    collector runs.

    Args:
        name: of the thread.
        expected: exceptions of an action that are logged at level DEBUG only.
    """

    def __init__(self, name: str, expected: type[Exception] | tuple[()] = ()) -> None:
        self._expected = expected
        self._actions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, action: Callable[[], Any]) -> bool:
        """Have ``action`` called; False where it has ended."""
        if self._closed:
            return False
        self._actions.put(action)
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all that was submitted is done; False when ``timeout`` seconds have passed."""
        done = threading.Event()
        self.submit(done.set)
        return self._closed or done.wait(timeout)

    def end(self) -> None:
        """Have the thread end once all that was submitted is done; idempotent."""
        if not self._closed:
            self._closed = True
            self._actions.put(None)

    def close(self) -> None:
        """End the thread once all that was submitted is done, and wait for it; idempotent."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)

    def _run(self) -> None:
        while True:
            action = self._actions.get()
            if action is None:
                return
            try:
                action()
            except self._expected as error:
                log.debug("fiber: %s", error)
            except Exception:
                log.exception("fiber: something done on behalf of a shared object failed")
            # what it refers to is not to live until the next one comes
            del action


class Callbacks:
    """The callbacks of one pool.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, callback: Callable[[Any], Any], value: Any) -> bool:
        """Have ``callback(value)`` called; False after :meth:`close`, when it is not."""
        with self._lock:
            if not self._closed:
                self._start()
                self._queue.put(functools.partial(callback, value))
            return not self._closed

    def start(self) -> None:
        """Start the thread before there is anything to run, where it will be too late then."""
        with self._lock:
            if not self._closed:
                self._start()

    def is_current(self) -> bool:
        """True on the thread that runs them."""
        return self._thread is threading.current_thread()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self, timeout: float | None = None) -> None:
        """End the thread once it has run what there is; called by a callback, do not wait for it."""
        with self._lock:
            if not self._closed and self._thread is not None:
                self._queue.put(None)
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            action = self._queue.get()
            if action is None:
                return
            try:
                action()
            # the user's own code: it may raise anything, and the next one still runs
            except BaseException as error:
                threading.excepthook(
                    threading.ExceptHookArgs(
                        (type(error), error, error.__traceback__, threading.current_thread())
                    )
                )
            # while the next one is waited for, nothing of the last one is kept alive
            del action
