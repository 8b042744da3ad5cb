"""Changes of jobs that other processes submitted, from the journals of their run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fiber.model import Job, JobStatus

__all__ = ["JournalFollower"]


class JournalFollower:
    """Compares what journals say with what they said before.

    Args:
        look: the jobs of a run and their statuses, as journals have them now.
        is_ours: whether a job's changes are told by other means.
        is_open: False to follow only those jobs that are there at the first look.
    """

    def __init__(
        self,
        look: Callable[[], Iterable[tuple[Job, JobStatus]]],
        is_ours: Callable[[Job], bool],
        *,
        is_open: bool,
    ) -> None:
        self._look = look
        self._is_ours = is_ours
        self._is_open = is_open
        self._looked = False
        self._last: dict[str, JobStatus] = {}

    @property
    def goes_on(self) -> bool:
        """True while there may be changes."""
        return (
            self._is_open
            or not self._looked
            or any(not status.state.is_terminal for status in self._last.values())
        )

    def changes(self) -> list[tuple[Job, JobStatus]]:
        """Look again; returns what has changed since the last look."""
        found = []
        for job, status in self._look():
            last = self._last.get(job.id)
            if last is None and (self._is_ours(job) or (self._looked and not self._is_open)):
                continue
            if last != status and not (last and last.state.is_terminal):
                self._last[job.id] = status
                found.append((job, status))
        self._looked = True
        return found
