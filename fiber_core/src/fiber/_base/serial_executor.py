"""Threads that run actions one after another, in the order of submission.

:class:`SerialExecutor` runs from the beginning, and takes no lock: finalizers may submit to it.
:class:`CallbackThread` starts with the first action, where there may be none, and tells whether
one will run; users' callbacks run there, and what must not delay its caller.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import Any

from fiber._base.log import lazy_logger

log = lazy_logger()


class SerialExecutor:
    """Executor with one thread, which runs actions in the order of submission.

    ``submit`` takes no lock that the caller may hold, so that a finalizer may call it whenever the
    collector runs.

    Args:
        name: name of the thread.
        expected: exceptions of an action that are logged at level DEBUG only.
    """

    def __init__(self, name: str, expected: type[Exception] | tuple[()] = ()) -> None:
        self._expected = expected
        self._actions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, action: Callable[[], Any]) -> bool:
        """Run ``action`` on the thread, after those submitted before; False once this has ended."""
        if self._closed:
            return False
        self._actions.put(action)
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all actions submitted so far are done; False after ``timeout`` seconds."""
        done = threading.Event()
        self.submit(done.set)
        return self._closed or done.wait(timeout)

    def end(self) -> None:
        """End the thread after the actions submitted so far; idempotent; does not wait."""
        if not self._closed:
            self._closed = True
            self._actions.put(None)

    def close(self) -> None:
        """End the thread after the actions submitted so far, and wait for it; idempotent."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)

    def _run(self) -> None:
        _run_all(self._actions, self._report)

    def _report(self, error: BaseException) -> None:
        if isinstance(error, self._expected):
            log.debug("fiber: %s", error)
        else:
            log.error("fiber: something done on behalf of a shared object failed", exc_info=error)


class CallbackThread:
    """Thread that runs callbacks in order; started on first use. Errors go to the thread's excepthook.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, callback: Callable[..., Any], *values: Any) -> bool:
        """Queue ``callback(*values)``; False after :meth:`close`, when it is not called."""
        with self._lock:
            if not self._closed:
                self._start()
                self._queue.put(functools.partial(callback, *values))
            return not self._closed

    def start(self) -> None:
        """Start the thread now, where it could not be started later (at interpreter exit)."""
        with self._lock:
            if not self._closed:
                self._start()

    def is_current(self) -> bool:
        """True on the thread that runs the callbacks."""
        return self._thread is threading.current_thread()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self, timeout: float | None = None) -> None:
        """End the thread after the queued callbacks, and wait for it, save on that thread itself."""
        with self._lock:
            if not self._closed and self._thread is not None:
                self._queue.put(None)
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        _run_all(self._queue, _show)


def _show(error: BaseException) -> None:
    threading.excepthook(
        threading.ExceptHookArgs(
            (type(error), error, error.__traceback__, threading.current_thread())
        )
    )


def _run_all(
    actions: queue.SimpleQueue[Callable[[], Any] | None], report: Callable[[BaseException], object]
) -> None:
    while (action := actions.get()) is not None:
        try:
            action()
        # user code: it may raise anything, and the next action still runs
        except BaseException as error:
            report(error)
        # else what it refers to would live until the next action
        del action
