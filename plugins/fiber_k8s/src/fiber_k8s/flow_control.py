"""Backoff between retries, the time for which calls are retried, and a rate limiter."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

from fiber.backend_parts.outage import Outage
from fiber.model import Timing

log = logging.getLogger("fiber")


def backoff(first: float, most: float, tries: int | None = None) -> Iterator[float]:
    """Yield the seconds to wait before each retry: exponential, with a jitter of 20 %.

    Args:
        first: the first wait.
        most: the longest wait.
        tries: number of waits; None for no end.
    """
    wait, done = first, 0
    while tries is None or done < tries:
        # with a jitter, so that clients which were refused together do not return together
        yield wait * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        wait = min(most, wait * 2)
        done += 1


class RetryWindow:
    """The time for which a call is retried while the cluster is not reachable; logged once.

    It is as long as the core waits for any platform. The backend retries by itself where the core
    cannot: only the backend knows a pod's name, by which it sees whether an earlier try created it,
    and a program's first list comes before the core knows that the platform ever answered.

    Args:
        what: the call in words, for messages: "the cluster cannot be asked to …".
        timing: durations of the run.
    """

    def __init__(self, what: str, timing: Timing) -> None:
        self._what = what
        self._timing = timing
        self._began = time.monotonic()
        self._outage = Outage(timing)

    def allows(self, error: Exception) -> bool:
        """Return whether the call may be tried again.

        Args:
            error: of the last try.
        """
        outage, now = self._outage, time.monotonic()
        outage.failed(error, self._began, now)
        if outage.notice(now):
            left = self._timing.outage - outage.lasted
            log.warning("fiber: still trying to %s, for %.0f s more: %s", self._what, left, error)
        return not outage.is_over


class RateLimiter:
    """Token bucket; thread-safe.

    Args:
        burst: size of the bucket: calls that pass without a wait.
        rate: tokens added a second.
        clock: monotonic seconds.
        sleep: waits for some seconds.
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

    def acquire(self) -> None:
        """Take a token, and wait until it is there."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._then) * self._rate)
            self._then = now
            self._left -= 1
            wait = -self._left / self._rate if self._left < 0 else 0.0
        if wait:
            # nothing but time adds tokens
            self._sleep(wait)
