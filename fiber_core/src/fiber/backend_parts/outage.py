"""Retries of a platform that cannot be reached; pure, the clock is passed in.

An engine is upgraded, a control plane changes its leader, a host reboots:
:class:`BackendUnavailableError` is no statement about the job that was to be submitted, so it is
submitted again. A pool's workers, a single process and a backend's own attempts follow the same
schedule.
"""

from __future__ import annotations

__all__ = ["RETRY_TIMEOUT", "Outage"]

#: seconds for which attempts are repeated
RETRY_TIMEOUT = 60.0
#: seconds between attempts; no event announces that a platform is back
PAUSES = (0.2, 0.5, 1.0, 2.0)
#: seconds after which the user gets a notice
NOTICE_DELAY = 5.0


class Outage:
    """Failed attempts in a row to reach a platform.

    Args:
        timeout: seconds for which attempts are repeated.
    """

    def __init__(self, timeout: float = RETRY_TIMEOUT) -> None:
        self._timeout = timeout
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
            self.due = began + NOTICE_DELAY
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
        return self._last + PAUSES[min(self._attempts, len(PAUSES)) - 1]

    @property
    def lasted(self) -> float:
        """Seconds from the first attempt that failed to the last one."""
        return 0.0 if self.error is None else self._last - self._since

    @property
    def is_over(self) -> bool:
        """True once attempts were repeated for ``timeout`` seconds."""
        return self.error is not None and self.lasted >= self._timeout

    def notice(self, now: float) -> str | None:
        """Sentence for the user if it is due now, once an outage; None otherwise."""
        if self.due is None or now < self.due:
            return None
        self.due = None
        return (
            f"the platform cannot be asked, and is asked again for {self._timeout:g} s in all: "
            f"{self.error}"
        )
