"""What is said of workers that wait for a place, or cannot get one; pure, the clock is passed in.

A pool goes on with the workers that it has. Whoever wonders why there are no more is told once, in the
platform's words, and again when these are others.
"""

from __future__ import annotations

from fiber.model import JobState, JobStatus

__all__ = ["PATIENCE", "Places"]

#: seconds that a worker waits for its place, or is suspended, before a word is said
PATIENCE = 5.0
#: seconds after which other words may be said
AGAIN = 60.0


class Places:
    """Remembers who waits, why, and what was said of it."""

    def __init__(self) -> None:
        #: since when a job waits, and its platform's words; who waits longest is first
        self._waiting: dict[str, tuple[float, str]] = {}
        #: why the last one that could not be started was not
        self._failure = ""
        self._said = ""
        self._said_at = 0.0
        #: when there is something to say
        self.due: float | None = None

    def observed(self, job: str, status: JobStatus, now: float) -> None:
        """A job has a status."""
        if status.state is JobState.PENDING and status.message:
            since, _ = self._waiting.get(job, (now, ""))
            self._waiting[job] = since, status.message
        elif self._waiting.pop(job, None) is None:
            return
        self._plan(now)

    def failed(self, words: str, now: float) -> None:
        """A job ended before it ran."""
        self._failure = words
        self._plan(now)

    def next(self, now: float, *, running: int, wanted: int) -> str | None:
        """What to say now, if anything.

        Args:
            now: the moment.
            running: workers that run.
            wanted: workers that are wished for.
        """
        if self.due is None or now < self.due:
            return None
        self.due = None
        if running >= wanted:
            self._failure = self._said = ""
            return None
        self._said, self._said_at = self._longest(now)[1], now
        if self._waiting:
            count = len(self._waiting)
            how = "waits for a place" if count == 1 else "wait for a place"
            return f"{running} of {wanted} workers run, {count} {how}: {self._said}"
        return f"{running} of {wanted} workers run; another one was not started: {self._said}"

    def _longest(self, now: float) -> tuple[float, str]:
        # what failed waits no more
        return next(iter(self._waiting.values()), (now - PATIENCE, self._failure))

    def _plan(self, now: float) -> None:
        since, words = self._longest(now)
        if not words or words == self._said:
            self.due = None
            return
        self.due = since + PATIENCE
        if self._said:
            self.due = max(self.due, self._said_at + AGAIN)
