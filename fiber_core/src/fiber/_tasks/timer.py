"""One timer that is set anew whenever what it waits for comes sooner."""

from __future__ import annotations

import time
from collections.abc import Callable

from fiber._wire.reactor import Reactor, Timer


class Alarm:
    """Calls back at a moment, or before: whoever is called sets it again. For use under a lock.

    Args:
        reactor: runs the timer.
        ring: called on its thread, after which nothing is set.
    """

    def __init__(self, reactor: Reactor, ring: Callable[[], None]) -> None:
        self._reactor = reactor
        self._ring = ring
        self._timer: Timer | None = None

    def set(self, deadline: float | None) -> None:
        """Ring at ``deadline`` on the monotonic clock; None for no need to.

        One that is set for sooner stays: to be called too soon costs less than to be set each time.
        """
        if deadline is None or (
            self._timer is not None
            and self._timer.action is not None
            and self._timer.when <= deadline
        ):
            return
        self.cancel()
        self._timer = self._reactor.call_later(max(0.0, deadline - time.monotonic()), self._ring)

    def rung(self) -> None:
        """Whoever was called back knows."""
        self._timer = None

    def cancel(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
