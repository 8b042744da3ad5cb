"""How fast the cluster is asked, and for how long: waits between tries, and a budget for what is created."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

from fiber._launch import outage
from fiber._launch.outage import Outage

__all__ = ["Budget", "Patience", "backoff"]

log = logging.getLogger("fiber")

_FIRST = 0.2
_MOST = 5.0
_TRIES = 6


def backoff(
    first: float = _FIRST, most: float = _MOST, tries: int | None = _TRIES
) -> Iterator[float]:
    """Seconds to wait before each next try: twice as long each time, and spread.

    Args:
        first: before the first.
        most: at most.
        tries: how many there are; None for no end.
    """
    wait, done = first, 0
    while tries is None or done < tries:
        # spread, so that those who were refused together do not come back together
        yield wait * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        wait = min(most, wait * 2)
        done += 1


class Patience:
    """How long something is tried that the cluster does not take; people are told so once.

    It is the core's patience with platforms that cannot be asked. A backend repeats by itself what
    another submission could not: whether a pod was made shows by its name alone, and a program's
    first list comes before the core knows that the platform ever answered.

    Args:
        what: the cluster is asked to do, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._outage = Outage(outage.PATIENCE)

    def lasts(self, error: Exception) -> bool:
        """Whether it is tried again.

        Args:
            error: what became of the last try.
        """
        now = time.monotonic()
        self._outage.failed(error, self._began, now)
        if self._outage.next(now) is not None:
            left = outage.PATIENCE - self._outage.lasted
            log.warning("fiber: still trying to %s, for %.0f s more: %s", self._what, left, error)
        return not self._outage.is_over


class Budget:
    """Lets so many pass at once, and so many a second after that; thread-safe.

    Args:
        burst: how many pass at once.
        rate: how many a second.
        clock: monotonic seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        burst: int,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._left = float(burst)
        self._then = clock()

    def spend(self) -> None:
        """Pass, once there is something left."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._then) * self._rate)
            self._then = now
            self._left -= 1
            wait = -self._left / self._rate if self._left < 0 else 0.0
        if wait:
            # time itself is what is waited for
            self._sleep(wait)
