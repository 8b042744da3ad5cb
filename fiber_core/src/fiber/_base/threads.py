"""Threads that run actions in the order of submission, and waits that a signal ends.

:class:`SerialExecutor` runs from the beginning, and takes no lock: finalizers may submit to it.
:class:`CallbackThread` starts with the first action, where there may be none, and tells whether
one will run; users' callbacks run there, and what must not delay its caller. A :class:`ThreadPool` has
more than one thread.

A program in ``get()`` or ``join()`` ends at Ctrl-C, whenever that comes. CPython runs the handlers of
signals on the main thread, between two instructions. A call that waits is interrupted by a signal that
arrives during it. One that arrives just before, while the thread gives up the GIL, or that the system
delivers to another thread, is not noticed before the call returns. A wait without an end would then be
for ever, so that each of :func:`in_turns` has one.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from fiber._base.log import lazy_logger

_Item = TypeVar("_Item")

#: longest time of one call that waits, in seconds
TURN = 1.0


def in_turns(wait: Callable[[float], bool], timeout: float | None = None) -> bool:
    """Wait in turns of :data:`TURN`; False when ``timeout`` seconds have passed.

    Args:
        wait: waits so many seconds at most; returns False when they have passed.
        timeout: seconds; None for any number.
    """
    if timeout is None:
        while not wait(TURN):
            pass
        return True
    if timeout > TURN:
        end = time.monotonic() + timeout
        while timeout > TURN:
            if wait(TURN):
                return True
            timeout = max(0.0, end - time.monotonic())
    return wait(timeout)


def turn(left: float | None) -> float:
    """Seconds of one turn of a loop that looks at its condition and at the time that is left."""
    return TURN if left is None or left > TURN else left


def next_item(items: queue.SimpleQueue[_Item], until: float | None = None) -> _Item | None:
    """Take an item in turns, so that what a handler of signals puts is taken; None from ``until`` on.

    Args:
        items: the queue; a handler may put into it, in the middle of this.
        until: time on the monotonic clock; None for any.
    """
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return items.get(timeout=turn(left))
        except queue.Empty:
            if left is not None and left <= TURN:
                return None


@contextlib.contextmanager
def ending_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Call a function on the main thread with each signal that would end this process, in the block.

    Signals that are ignored stay so, as under nohup.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: handle(got)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watchable(Protocol):
    """Source of one-shot notifications: a result, or a stream of results."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, on any thread, when something is available; now if it is already."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Undo :meth:`watch`; nothing happens where ``wake`` was called already."""


async def wait_ready(source: Watchable) -> None:
    """Wait until ``source`` has something; a cancelled wait leaves no watcher behind."""
    # 20 ms for programs that await nothing
    import asyncio

    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    def wake() -> None:
        # the loop may be closed by now; then there is no waiter left
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_ready)

    source.watch(wake)
    try:
        await ready
    finally:
        source.unwatch(wake)


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


log = lazy_logger()


class ThreadPool:
    """Threads for calls that may wait for long, of a platform say; they need not be ended.

    Args:
        name: name of the threads.
        limit: most of them at once; more actions wait.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._actions: deque[Callable[[], None]] = deque()
        self._threads = 0

    def submit(self, action: Callable[[], None]) -> None:
        """Run ``action`` on one of the threads; its exception is logged.

        Raises:
            RuntimeError: there is no thread, and none can be started.
        """
        with self._lock:
            self._actions.append(action)
            if self._threads >= self._limit:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                if self._threads or action not in self._actions:
                    # another one does it
                    return
                self._actions.remove(action)
            raise

    def clear(self) -> None:
        """Drop the actions that have not begun."""
        with self._lock:
            self._actions.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._actions:
                    self._threads -= 1
                    return
                action = self._actions.popleft()
            try:
                action()
            except BaseException:  # SystemExit of a user's pickle ends no thread of ours
                log.exception("fiber: an action on a thread of %s failed", self._name)
