"""Event loop: descriptors and timers, whose callbacks run on the thread that calls :meth:`Loop.run_once`.

Supervisors run a :class:`Loop` in their only thread. A :class:`SharedLoop` takes calls from other
threads: that of a ring's controller, and a :class:`Reactor`, whose thread is its own.

Needs the standard library alone, for it runs on hosts without Fiber too.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fiber._base.log import lazy_logger

__all__ = ["Loop", "Reactor", "SharedLoop", "Timer", "drained", "wake", "wake_pipe"]

log = lazy_logger()

_Callback = Callable[[], Any]
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


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
        for timer in self._due():
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


class SharedLoop(Loop):
    """A loop to which other threads give work: ``call_soon``, ``call_later`` and ``stop`` are for any.

    Args:
        max_wait: longest wait of one round in seconds.
    """

    def __init__(self, max_wait: float | None = None) -> None:
        super().__init__()
        self._max_wait = max_wait
        self._soon: deque[_Callback] = deque()
        # of the timers and the wake-up pipe
        self._lock = threading.Lock()
        # when its thread looks for timers by itself, at the latest
        self._looks_at = 0.0
        # -1 once closed: another thread may still have something to say
        self._wake_read, self._wake_write = wake_pipe()
        self.on_readable(self._wake_read, lambda: drained(self._wake_read))
        self._awake = False
        self._stopping = False

    @property
    def is_current(self) -> bool:
        """True on the loop's own thread, where it has one."""
        return False

    def call_soon(self, callback: _Callback) -> None:
        """Run ``callback`` on the loop's thread."""
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
        with self._lock:
            descriptors = self._wake_read, self._wake_write
            self._wake_read = self._wake_write = -1
        super().close()
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)

    def _wake(self) -> None:
        if self._awake or self.is_current:
            return
        self._awake = True
        try:
            with self._lock:
                if self._wake_write >= 0:
                    wake(self._wake_write)
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
