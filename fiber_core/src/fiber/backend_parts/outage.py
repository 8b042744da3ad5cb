"""Retries of a platform that cannot be reached; pure, the clock is passed in.

An engine is upgraded, a control plane changes its leader, a host reboots:
:class:`BackendUnavailableError` is no statement about the job that was to be submitted, so it is
submitted again. A pool's workers, a single process and a backend's own attempts follow the same
schedule.
"""

from __future__ import annotations

from fiber.model.timing import Timing

__all__ = ["Outage"]


class Outage:
    """Failed attempts in a row to reach a platform.

    Args:
        timing: durations of the run.
    """

    def __init__(self, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._attempts = 0
        self._since = 0.0
        self._last = 0.0
        #: error of the last attempt; None while the platform answers
        self.error: BaseException | None = None
        #: time of the notice to the user; None where there is none to give
        self.due: float | None = None

    def failed(self, error: BaseException, began: float, now: float) -> None:
        """Note an attempt that failed.

        Args:
            error: what it raised.
            began: when it began; it may have waited by itself, and that counts.
            now: monotonic time.
        """
        if self.error is None:
            self._since = began
            self.due = began + self._timing.outage_notice
        self._attempts += 1
        self._last = now
        self.error = error

    def ended(self) -> None:
        """Note that the platform answered."""
        self.error = self.due = None
        self._attempts = 0

    @property
    def retry_at(self) -> float:
        """Time of the next attempt."""
        pauses = self._timing.outage_backoff
        return self._last + pauses[min(self._attempts, len(pauses)) - 1]

    @property
    def lasted(self) -> float:
        """Seconds from the first attempt that failed to the last one."""
        return 0.0 if self.error is None else self._last - self._since

    @property
    def is_over(self) -> bool:
        """True once attempts were repeated for as long as they are to be."""
        return self.error is not None and self.lasted >= self._timing.outage

    def notice(self, now: float) -> str | None:
        """Sentence for the user if it is due now, once an outage; None otherwise."""
        if self.due is None or now < self.due:
            return None
        self.due = None
        return (
            "the platform cannot be asked, and is asked again for "
            f"{self._timing.outage:g} s in all: {self.error}"
        )
