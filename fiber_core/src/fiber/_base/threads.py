"""Event loops and threads that run callbacks, and waits that a signal ends.

Callbacks of a :class:`Loop` run on the thread that calls :meth:`Loop.run_once`, when descriptors are
ready and when time has passed. Supervisors run one in their only thread. A :class:`SharedLoop` takes calls
from other threads: that of a ring's controller, and a :class:`Reactor`, whose thread is its own.

:class:`SerialExecutor` runs actions from the beginning, and takes no lock: finalizers may submit to it.
:class:`CallbackThread` starts with the first action, where there may be none, and tells whether
one will run; users' callbacks run there, and what must not delay its caller. A :class:`ThreadPool` has
more than one thread.

A program in ``get()`` or ``join()`` ends at Ctrl-C, whenever that comes. CPython runs the handlers of
signals on the main thread, between two instructions. A call that waits is interrupted by a signal that
arrives during it. One that arrives just before, while the thread gives up the GIL, or that the system
delivers to another thread, is not noticed before the call returns. A wait without an end would then be
for ever, so that each of :func:`in_turns` has one.

Needs the standard library alone, for it runs on hosts without Fiber too.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
import os
import queue
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from fiber._base.interpreter import unless_finalizing
from fiber._base.log import lazy_logger

log = lazy_logger()

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")
_Callback = Callable[[], Any]
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

#: longest time of one call that waits, in seconds
TURN = 1.0
#: on one CPU there is nobody to look for before a thread sleeps
HAS_TWO_CPUS = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else True
#: lets another thread of the machine run on this CPU, if there is one
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class Looks:
    """Looks for what a thread waits for before it sleeps: to be woken takes 40 us where a CPU is idle.

    A thread whose looks were in vain some times in a row sleeps at once, many times; and more often, twice as many
    after each time, where a third thread had its CPU between two looks, as on a busy machine.

    Args:
        most: looks before one sleep.
    """

    #: times that looking may be in vain in a row, and how often a thread then sleeps at once
    IN_VAIN, AT_ONCE = 8, 64
    #: how often it sleeps at once at most; seconds after which another thread has had the CPU
    MOST_AT_ONCE, LONG = 4096, 1e-4

    def __init__(self, most: int) -> None:
        #: before one sleep
        self.most = most if HAS_TWO_CPUS else 0
        # how often it may still be looked in vain; below 0, how often it was not looked
        self._credit = self.IN_VAIN
        self._at_once = self.AT_ONCE

    def begin(self) -> int:
        """Number of looks before this sleep."""
        self._credit -= 1
        if self._credit < -self._at_once:
            # once more
            self._credit = 0
        return self.most if self._credit >= 0 else 0

    def found(self) -> None:
        """A look, not the first, has found what is waited for."""
        self._credit = self.IN_VAIN
        self._at_once = max(self._at_once // 2, self.AT_ONCE)

    def give_way(self) -> bool:
        """Let another thread run between two looks; False where that took long, and it is better to sleep.

        The kernel runs a thread that was woken sooner than one that gave way.
        """
        before = time.monotonic()
        give_way()
        if time.monotonic() - before <= self.LONG:
            return True
        self._credit, self._at_once = 0, min(2 * self._at_once, self.MOST_AT_ONCE)
        return False


class Timer:
    """A callback that is to run later; :meth:`cancel` may be called on any thread."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: _Callback) -> None:
        self.when = when
        #: None once it runs or was cancelled
        self.callback: _Callback | None = callback

    def cancel(self) -> None:
        """Never run it. Idempotent."""
        self.callback = None


class Loop:
    """Runs callbacks when descriptors are ready and when time has passed; for one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._selector = selectors.DefaultSelector()
        self._clock = clock
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        # what to call when a descriptor can be read and written
        self._watched: dict[int, list[_Callback | None]] = {}

    def watch(self, fd: int, read: _Callback | None, write: _Callback | None) -> None:
        """Set both callbacks of a descriptor; with neither it is forgotten.

        Raises:
            PermissionError: the system does not poll such files, which are always ready.
        """
        events = (_READ if read else 0) | (_WRITE if write else 0)
        callbacks = self._watched.get(fd)
        if not events:
            self.forget(fd)
        elif callbacks is None:
            callbacks = [read, write]
            self._selector.register(fd, events, callbacks)
            self._watched[fd] = callbacks
        else:
            if events != (_READ if callbacks[0] else 0) | (_WRITE if callbacks[1] else 0):
                self._selector.modify(fd, events, callbacks)
            callbacks[:] = read, write

    def on_readable(self, fd: int, callback: _Callback | None) -> None:
        """Run ``callback`` whenever the descriptor can be read; None to stop."""
        callbacks = self._watched.get(fd)
        self.watch(fd, callback, None if callbacks is None else callbacks[1])

    def on_writable(self, fd: int, callback: _Callback | None) -> None:
        """Run ``callback`` whenever the descriptor can be written; None to stop.

        Raises:
            PermissionError: the system does not poll such files; writing to them never blocks.
        """
        callbacks = self._watched.get(fd)
        self.watch(fd, None if callbacks is None else callbacks[0], callback)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor; must precede its closing. Idempotent."""
        callbacks = self._watched.pop(fd, None)
        if callbacks is not None:
            # events that were found in this turn reach it no more
            callbacks[:] = None, None
            self._selector.unregister(fd)

    def on_signals(
        self, signums: Iterable[int], callback: Callable[[bytes], object]
    ) -> tuple[int, int]:
        """Run ``callback`` with the numbers of signals that came; for the main thread.

        Returns:
            The two ends of the pipe that they come through, which the caller closes.
        """
        reader, writer = wake_pipe()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for signum in signums:
            # the handler does nothing: what counts is the byte that the interpreter writes
            signal.signal(signum, lambda *_: None)
        self.on_readable(reader, lambda: callback(drained(reader)))
        return reader, writer

    def call_later(self, delay: float, callback: _Callback) -> Timer:
        """Run ``callback`` once after ``delay`` seconds."""
        timer = Timer(self._clock() + delay, callback)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    def fileno(self) -> int:
        """Descriptor of the selector, for a forked process that closes it and keeps the loop."""
        return self._selector.fileno()

    def now(self) -> float:
        """Present time on the clock of timers."""
        return self._clock()

    def run_once(self, latest: float | None = None) -> None:
        """Wait for the next event and run the callbacks that are due.

        Args:
            latest: when to return at the latest, on the clock of timers.
        """
        wait = self._timeout()
        if latest is not None:
            left = max(0.0, latest - self._clock())
            wait = left if wait is None else min(wait, left)
        for key, events in self._selector.select(wait):
            # read only now, as with timers: a callback before it may have changed it
            if events & _READ and key.data[0] is not None:
                self._call(key.data[0])
            if events & _WRITE and key.data[1] is not None:
                self._call(key.data[1])
        # where none is due, without a call: for each message
        is_due = self._timers and self._timers[0][0] <= self._clock()
        for timer in self._due() if is_due else ():
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self._call(callback)

    def close(self) -> None:
        """Release the selector; watched descriptors stay open."""
        self._selector.close()
        self._watched.clear()
        self._timers.clear()

    def _call(self, callback: _Callback) -> None:
        callback()

    def _due(self) -> list[Timer]:
        due: list[Timer] = []
        if self._timers:
            now = self._clock()
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers)[2])
        return due

    def _timeout(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self._clock())


def wake_pipe() -> tuple[int, int]:
    """A pipe by which whoever waits for descriptors is woken: its reading end, for :func:`drained`, and the other."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def wake(writer: int) -> None:
    """Wake whoever waits for the other end of :func:`wake_pipe`; never blocks."""
    try:
        os.write(writer, b"\0")
    except BlockingIOError:
        # full: it is about to wake
        return


def drained(reader: int) -> bytes:
    """Read everything that was written to the other end of :func:`wake_pipe`."""
    try:
        return os.read(reader, 4096)
    except BlockingIOError:
        return b""


class _Waker:
    """A :func:`wake_pipe` that any thread uses without a lock: it is closed with the last reference to it."""

    def __init__(self) -> None:
        self.fd, self._writer = wake_pipe()

    def wake(self) -> None:
        """Wake whoever waits for :attr:`fd`; never blocks."""
        wake(self._writer)

    @unless_finalizing
    def __del__(self) -> None:
        os.close(self.fd)
        os.close(self._writer)


class SharedLoop(Loop):
    """A loop to which other threads give work: ``call_soon``, ``call_later`` and ``stop`` are for any.

    Args:
        max_wait: longest wait of one round in seconds.
    """

    def __init__(self, max_wait: float | None = None) -> None:
        super().__init__()
        self._max_wait = max_wait
        self._soon: deque[_Callback] = deque()
        # of the timers
        self._lock = threading.Lock()
        # when its thread looks for timers by itself, at the latest
        self._looks_at = 0.0
        # None once closed: another thread may still have something to say
        self._waker: _Waker | None = _Waker()
        fd = self._waker.fd
        self.on_readable(fd, lambda: drained(fd))
        self._awake = False
        self._stopping = False

    @property
    def is_current(self) -> bool:
        """True on the loop's own thread, where it has one."""
        return False

    def call_soon(self, callback: _Callback) -> None:
        """Run ``callback`` on the loop's thread; takes no lock."""
        self._soon.append(callback)
        self._wake()

    def call_later(self, delay: float, callback: _Callback) -> Timer:
        """Run ``callback`` once on the loop's thread, after ``delay`` seconds."""
        with self._lock:
            timer = super().call_later(delay, callback)
            is_early = timer.when < self._looks_at
        if is_early:
            self._wake()
        return timer

    def run(self, turn: Callable[[], float | None] | None = None) -> None:
        """Run until :meth:`stop`.

        Args:
            turn: called before each round; returns when the next one is to come at the latest.
        """
        while not self._stopping:
            self.run_once(None if turn is None else turn())

    def run_once(self, latest: float | None = None) -> None:
        """Wait for the next event, and run what is due and what was posted."""
        super().run_once(latest)
        self._awake = False
        if self._soon:
            self.run_posted()

    def run_posted(self) -> None:
        """Run what was posted so far, but not what that posts."""
        for _ in range(len(self._soon)):
            self._call(self._soon.popleft())

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """Release the descriptors; what is posted from now on is never run. Idempotent."""
        super().close()
        self._waker = None

    def _wake(self) -> None:
        if self._awake or self.is_current:
            return
        waker = self._waker
        self._awake = True
        try:
            if waker is not None:
                waker.wake()
        except BaseException:
            # interrupted, perhaps before it was written: the next call has to
            self._awake = False
            raise

    def _timeout(self) -> float | None:
        if self._soon:
            return 0.0
        with self._lock:
            wait, most = super()._timeout(), self._max_wait
            if wait is None or (most is not None and most < wait):
                wait = most
            self._looks_at = math.inf if wait is None else self._clock() + wait
        return wait

    def _due(self) -> list[Timer]:
        with self._lock:
            return super()._due()


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
        # nothing that takes a lock, as to ask for the thread of one of nng's
        return threading.get_ident() == self._thread.ident

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

    def stop(self, timeout: float | None = 10.0) -> None:
        """End the thread and release its descriptors, once the action that runs has ended; idempotent.

        Args:
            timeout: seconds to wait for that action at most.
        """
        if self._stopping:
            return
        super().stop()
        if not self.is_current:
            self._thread.join(timeout)

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


class Deadline:
    """End of a timeout on the monotonic clock."""

    __slots__ = ("_end",)

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        """Seconds left, not below 0; None for any number."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def wait_until(
    predicate: Callable[[], _Found], wait: Callable[[float | None], object], timeout: float | None
) -> _Found:
    """Wait until a predicate is true, which is called now and after each wait; its last value.

    Args:
        predicate: the predicate.
        wait: waits for a change, for so many seconds at most; None for any number.
        timeout: seconds for all waits; None for any number.
    """
    deadline = Deadline(timeout)
    while not (found := predicate()):
        left = deadline.left
        if left == 0:
            break
        wait(left)
    return found


def wait_for_wakeup(
    wakeup: threading.Lock,
    timeout: float | None,
    read: Callable[[float], bool | None] | None = None,
) -> bool:
    """Wait until a wakeup lock is released; False when ``timeout`` seconds have passed.

    Args:
        wakeup: the lock.
        timeout: seconds; None for any number.
        read: reads messages meanwhile, for some seconds: True once there is what is waited for, None
            where others read them.
    """

    def wait(seconds: float) -> bool:
        found = None if read is None else read(seconds)
        return wakeup.acquire(timeout=seconds) if found is None else found

    return in_turns(wait, None if timeout is None else max(timeout, 0.0))


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
        return self._thread is not None and self._thread is threading.current_thread()

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
