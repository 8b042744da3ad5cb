"""What became of jobs: the latest status of each, and streams of changes."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from fiber.model import Job, JobState, JobStatus

__all__ = ["StatusFeed"]

#: ended jobs that are remembered; their hosts know the others
_REMEMBERED = 10_000


class StatusFeed:
    """Holds jobs and their statuses; thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: dict[str, tuple[Job, JobStatus]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._streams: list[tuple[str, queue.SimpleQueue[tuple[Job, JobStatus] | None]]] = []
        self._closed = False

    def publish(self, job: Job, status: JobStatus) -> bool:
        """A job stands so now; False where that is nothing new, or comes after its end."""
        with self._changed:
            known = self._jobs.get(job.id)
            if known is not None and (known[1].state.is_terminal or known[1] == status):
                return False
            job = job if known is None else known[0]
            self._jobs[job.id] = (job, status)
            for run_id, stream in self._streams:
                if run_id == job.run_id:
                    stream.put((job, status))
            if status.state.is_terminal:
                self._ended[job.id] = None
                while len(self._ended) > _REMEMBERED:
                    del self._jobs[self._ended.popitem(last=False)[0]]
            self._changed.notify_all()
            return True

    def status(self, job_id: str) -> JobStatus | None:
        """The latest status of a job, if it is remembered."""
        with self._changed:
            known = self._jobs.get(job_id)
            return None if known is None else known[1]

    def forget(self, job_id: str) -> None:
        """Nothing more is told of a job here."""
        with self._changed:
            self._jobs.pop(job_id, None)
            self._ended.pop(job_id, None)

    def wait_placed(self, job_ids: list[str], timeout: float) -> bool:
        """True once none of the jobs is pending any more; False after ``timeout`` seconds."""

        def placed() -> bool:
            found = [self._jobs.get(job_id) for job_id in job_ids]
            return all(one is None or one[1].state is not JobState.PENDING for one in found)

        with self._changed:
            return self._changed.wait_for(placed, timeout)

    def events(self, run_id: str, opened: Callable[[], None]) -> Iterator[tuple[Job, JobStatus]]:
        """The present status of a run's jobs, then every change, until :meth:`close`.

        Args:
            run_id: the run.
            opened: called once changes are noted.
        """
        stream: queue.SimpleQueue[tuple[Job, JobStatus] | None] = queue.SimpleQueue()
        entry = (run_id, stream)
        with self._changed:
            for job, status in self._jobs.values():
                if job.run_id == run_id:
                    stream.put((job, status))
            if self._closed:
                stream.put(None)
            else:
                self._streams.append(entry)
        opened()
        return self._drain(entry)

    def close(self) -> None:
        """End all streams, after what they still have to tell. Idempotent."""
        with self._changed:
            self._closed = True
            for _, stream in self._streams:
                stream.put(None)
            self._streams.clear()
            self._changed.notify_all()

    def _drain(
        self, entry: tuple[str, queue.SimpleQueue[tuple[Job, JobStatus] | None]]
    ) -> Iterator[tuple[Job, JobStatus]]:
        try:
            while (item := entry[1].get()) is not None:
                yield item
        finally:
            with self._changed:
                if entry in self._streams:
                    self._streams.remove(entry)
