"""Values that tell how a program's work goes: the progress of one call, the status of a run.

They are facts of one moment, for people and for scripts; nothing of them is kept while nobody asks.
"""

from __future__ import annotations

from fiber._base import values

__all__ = ["Progress"]


@values.frozen(kw_only=True)
class Progress:
    """How far one ``map``, ``imap`` or ``starmap`` is."""

    #: name of the function
    function: str
    #: items in all; None while an iterable is drawn whose length is not known
    total: int | None
    #: items that have ended, the failed ones among them
    done: int
    #: items that raised, or were given up
    failed: int
    #: seconds since it began
    elapsed: float
    #: workers that are ready
    workers: int
    #: workers that there should be
    wanted: int
    #: workers that wait for a place
    waiting: int
    #: why there are fewer than wanted, in the platform's words; "" where it has said nothing
    reason: str
    #: True for the last one: all items have ended, or no more will
    is_over: bool

    @property
    def rate(self) -> float:
        """Items a second so far."""
        return self.done / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds left at this rate; None where that cannot be told."""
        if self.total is None or not self.done:
            return None
        return max(0, self.total - self.done) * self.elapsed / self.done

    def __str__(self) -> str:
        parts = [f"{self.done} of {'?' if self.total is None else self.total} done"]
        if self.done:
            parts.append(f"{self.rate:.3g}/s")
        if self.remaining and not self.is_over:
            parts.append(f"{_span(self.remaining)} left")
        if self.is_over:
            parts.append(f"took {_span(self.elapsed)}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if not self.is_over:
            parts.append(self.crew)
        return ", ".join(parts)

    @property
    def crew(self) -> str:
        """The workers in words, and why there are no more."""
        if self.workers >= self.wanted:
            return f"{self.workers} workers"
        said = f"{self.workers} of {self.wanted} workers"
        if self.waiting:
            said += f", {self.waiting} {'waits' if self.waiting == 1 else 'wait'}"
        return f"{said}: {self.reason}" if self.reason else said


def _span(seconds: float) -> str:
    """A span of time: ``4.2 s``, ``3:05``, ``2:03:04``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
