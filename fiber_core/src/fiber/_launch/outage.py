"""How long a platform that cannot be asked is waited for; pure, the clock is passed in.

An engine is upgraded, a control plane changes its leader, a host reboots: :class:`BackendUnavailableError` tells
nothing about the job that was to be submitted, so it is submitted again. A pool's workers and a single process
are waited for alike, and so are a backend's own attempts, on every platform.
"""

from __future__ import annotations

__all__ = ["PATIENCE", "Outage"]

#: seconds for which a platform is asked again
PATIENCE = 60.0
#: seconds between attempts; nothing tells when a platform is back
PAUSES = (0.2, 0.5, 1.0, 2.0)
#: seconds after which people are told what is waited for
SAID_AFTER = 5.0


class Outage:
    """Attempts in a row at which a platform could not be asked.

    Args:
        patience: seconds for which it is asked again.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._attempts = 0
        self._since = 0.0
        self._last = 0.0
        #: what the last attempt raised; None while the platform answers
        self.error: BaseException | None = None
        #: when people are to be told
        self.due: float | None = None

    def failed(self, error: BaseException, began: float, now: float) -> None:
        """Note an attempt that failed.

        Args:
            error: what it raised.
            began: when it began; it may have waited by itself, and that counts.
            now: the moment.
        """
        if self.error is None:
            self._since = began
            self.due = began + SAID_AFTER
        self._attempts += 1
        self._last = now
        self.error = error

    def ended(self) -> None:
        """Note that the platform answered."""
        self.error = self.due = None
        self._attempts = 0

    @property
    def retry_at(self) -> float:
        """When to ask again."""
        return self._last + PAUSES[min(self._attempts, len(PAUSES)) - 1]

    @property
    def lasted(self) -> float:
        """Seconds from the first attempt that failed to the last one."""
        return 0.0 if self.error is None else self._last - self._since

    @property
    def is_over(self) -> bool:
        """True once the platform was asked for long enough."""
        return self.error is not None and self.lasted >= self._patience

    def next(self, now: float) -> str | None:
        """The sentence to tell people now, once an outage, if any."""
        if self.due is None or now < self.due:
            return None
        self.due = None
        return (
            f"the platform cannot be asked, and is asked again for {self._patience:g} s in all: "
            f"{self.error}"
        )
