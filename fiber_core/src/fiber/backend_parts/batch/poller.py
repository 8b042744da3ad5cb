"""Poller: one query for all jobs at a bounded rate, for platforms that send no events."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from fiber._base import values
from fiber.backend_parts.threads import Timers
from fiber.exceptions import BackendUnavailableError
from fiber.model import Durations

__all__ = ["BatchTiming", "Pace", "Poller"]

log = logging.getLogger("fiber")

#: key of the next turn
_TURN = "turn"


@values.frozen(kw_only=True)
class BatchTiming(Durations):
    """Durations in seconds that backends of batch systems wait for, besides the core's."""

    #: between two questions to the platform at least, and where nothing is expected
    ask: float = 1.0
    ask_idle: float = 3.0
    #: between two looks at the marks of jobs, and where nothing is expected
    look: float = 0.1
    look_idle: float = 0.5
    #: for which something is expected after a job was submitted, ended or told to end
    expected: float = 10.0
    #: for the platform's word on a program that a signal ended which this program did not send
    word: float = 4.0
    #: for the mark of a job that the platform says has ended
    mark: float = 3.0
    #: before its time limit from which a job gets no more work, at most
    notice: float = 60.0
    #: after which a job that was killed and lives is killed again
    kill_again: float = 5.0
    #: after the grace, for the platform to confirm the end of a job that was told to end
    confirm: float = 20.0
    #: for a command of the platform to answer
    command: float = 30.0
    #: between two signs of life in a run's folder, and for the sweep to see none
    sign: float = 10.0
    silence: float = 40.0
    #: between two attempts of the guard to cancel what a dead program left, and for all of them
    guard_retry: float = 2.0
    guard_patience: float = 600.0


class Pace:
    """When to ask the platform and look at marks next; pure, the clock is passed in.

    Args:
        timing: its durations.
    """

    def __init__(self, timing: BatchTiming) -> None:
        self._timing = timing
        self._quick_until = float("-inf")
        self._asked = float("-inf")
        self._looked = float("-inf")
        self._wanted = False

    def expect(self, now: float) -> None:
        """Note that something is about to happen."""
        self._quick_until = now + self._timing.expected
        self._wanted = True

    def calm(self) -> None:
        """Note that nothing is about to happen any more."""
        self._quick_until = float("-inf")

    def asked(self, now: float) -> None:
        """Note that the platform was asked."""
        self._asked = now
        self._wanted = False

    def looked(self, now: float) -> None:
        """Note that marks were looked at."""
        self._looked = now

    def next_ask(self, now: float) -> float:
        """Time of the next question, never less than ``ask`` after the last one."""
        timing = self._timing
        quick = self._wanted or now < self._quick_until
        return self._asked + (timing.ask if quick else timing.ask_idle)

    def next_look(self, now: float) -> float:
        """Time of the next look."""
        timing = self._timing
        return self._looked + (timing.look if now < self._quick_until else timing.look_idle)


class Poller:
    """Thread that asks a platform and looks at marks, at a :class:`Pace`.

    Args:
        backend: name of the backend, for the thread's name.
        ask: asks the platform once for everything.
        look: looks at what can be seen without asking.
        timing: its durations.
    """

    def __init__(
        self,
        backend: str,
        ask: Callable[[], object],
        look: Callable[[], object],
        timing: BatchTiming,
    ) -> None:
        self._ask = ask
        self._look = look
        self._pace = Pace(timing)
        # of the pace
        self._lock = threading.Lock()
        self._timers = Timers(f"fiber-{backend}-poll")

    def start(self) -> None:
        """Schedule the next turn; starts the thread. Idempotent."""
        now = time.monotonic()
        with self._lock:
            due = min(self._pace.next_ask(now), self._pace.next_look(now))
        self._timers.set(_TURN, max(0.0, due - now), self._turn)

    def expect(self) -> None:
        """Ask and look quicker for a while; starts the thread."""
        with self._lock:
            self._pace.expect(time.monotonic())
        self.start()

    def calm(self) -> None:
        """Ask and look slowly again, since nothing is about to happen."""
        with self._lock:
            self._pace.calm()

    def asked(self) -> None:
        """Note that another thread has asked the platform just now."""
        with self._lock:
            self._pace.asked(time.monotonic())

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._timers.close()

    def _turn(self) -> None:
        now = time.monotonic()
        with self._lock:
            asks = now >= self._pace.next_ask(now)
            looks = asks or now >= self._pace.next_look(now)
            if asks:
                self._pace.asked(now)
            if looks:
                self._pace.looked(now)
        if asks:
            self._try(self._ask)
        if looks:
            self._try(self._look)
        self.start()

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BackendUnavailableError:
            # it is no statement about any job; whoever asks for one is told
            return
        except Exception:
            log.exception("fiber: the jobs' statuses could not be read")
