"""Changes of jobs that other processes submitted, found by comparing their journals over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fiber.model import Job, JobStatus

__all__ = ["JournalFollower"]


class JournalFollower:
    """Reads the jobs of a run repeatedly, and returns those whose status has changed.

    Args:
        read: returns the jobs of a run and their statuses, from journals.
        is_ours: whether a job's changes are reported otherwise, so that it is skipped.
        is_open: False to follow only the jobs of the first read.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[tuple[Job, JobStatus]]],
        is_ours: Callable[[Job], bool],
        *,
        is_open: bool,
    ) -> None:
        self._read = read
        self._is_ours = is_ours
        self._is_open = is_open
        self._has_read = False
        self._last: dict[str, JobStatus] = {}

    def changes(self) -> list[tuple[Job, JobStatus]] | None:
        """Read the jobs; return those whose status has changed since the last call.

        Returns:
            None where no more changes are possible.
        """
        is_over = self._has_read and not self._is_open
        if is_over and all(status.state.is_terminal for status in self._last.values()):
            return None
        found = []
        for job, status in self._read():
            last = self._last.get(job.id)
            if last is None and (self._is_ours(job) or (self._has_read and not self._is_open)):
                continue
            if last != status and not (last and last.state.is_terminal):
                self._last[job.id] = status
                found.append((job, status))
        self._has_read = True
        return found
