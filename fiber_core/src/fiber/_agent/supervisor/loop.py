"""Event loop of a supervisor: descriptors and timers, run by one thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable

__all__ = ["Loop", "Timer"]


class Timer:
    """A callback that is to run later, until it is cancelled."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never run it. Idempotent."""
        self.callback = None


class Loop:
    """Runs callbacks when descriptors are ready and when time has passed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._selector = selectors.DefaultSelector()
        self._clock = clock
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._watched: dict[int, list[Callable[[], None] | None]] = {}

    def on_readable(self, descriptor: int, callback: Callable[[], None] | None) -> None:
        """Run ``callback`` whenever the descriptor can be read; None to stop."""
        self._watch(descriptor, 0, callback)

    def on_writable(self, descriptor: int, callback: Callable[[], None] | None) -> None:
        """Run ``callback`` whenever the descriptor can be written; None to stop.

        Raises:
            PermissionError: the system does not poll such files; writing to them never blocks.
        """
        self._watch(descriptor, 1, callback)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; must precede its closing."""
        if self._watched.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` once after ``delay`` seconds."""
        timer = Timer(self._clock() + delay, callback)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    def now(self) -> float:
        """Present time on the clock of timers."""
        return self._clock()

    def run_once(self) -> None:
        """Wait for the next event and run the callbacks that are due."""
        for key, ready in self._selector.select(self._timeout()):
            for bit, event in enumerate((selectors.EVENT_READ, selectors.EVENT_WRITE)):
                callbacks = self._watched.get(key.fd)
                if ready & event and callbacks is not None:
                    callback = callbacks[bit]
                    if callback is not None:
                        callback()
        for timer in self._due():
            # read only now: a callback before it may have cancelled it
            callback = timer.callback
            if callback is not None:
                callback()

    def close(self) -> None:
        """Release the selector; watched descriptors stay open."""
        self._selector.close()
        self._watched.clear()
        self._timers.clear()

    def _due(self) -> list[Timer]:
        now = self._clock()
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        return due

    def _timeout(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self._clock())

    def _watch(self, descriptor: int, bit: int, callback: Callable[[], None] | None) -> None:
        known = self._watched.get(descriptor)
        callbacks: list[Callable[[], None] | None] = [None, None] if known is None else known[:]
        callbacks[bit] = callback
        events = (selectors.EVENT_READ if callbacks[0] else 0) | (
            selectors.EVENT_WRITE if callbacks[1] else 0
        )
        if not events:
            self.forget(descriptor)
        elif known is None:
            self._selector.register(descriptor, events)
            self._watched[descriptor] = callbacks
        else:
            self._selector.modify(descriptor, events)
            self._watched[descriptor] = callbacks
