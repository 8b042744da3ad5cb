"""Event loop: descriptors and timers, whose callbacks run on the thread that calls :meth:`Loop.run_once`.

Supervisors run it in their only thread; :class:`fiber._wire.reactor.Reactor` runs it on one of its
own, and takes calls from others.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Loop", "Timer"]

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

    def call_later(self, delay: float, callback: _Callback) -> Timer:
        """Run ``callback`` once after ``delay`` seconds."""
        timer = Timer(self._clock() + delay, callback)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    def now(self) -> float:
        """Present time on the clock of timers."""
        return self._clock()

    def run_once(self) -> None:
        """Wait for the next event and run the callbacks that are due."""
        for key, events in self._selector.select(self._timeout()):
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
