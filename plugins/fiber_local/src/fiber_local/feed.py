"""Statuses of the jobs submitted here: the latest one of each, and streams of changes."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator

from fiber.model import Job, JobState, JobStatus
from fiber_local.follower import JournalFollower

__all__ = ["StatusFeed"]

#: ended jobs that are remembered; older ones are in the journal alone
_REMEMBERED = 10_000


class _Subscription:
    __slots__ = ("queue", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.queue: queue.SimpleQueue[tuple[Job, JobStatus] | None] = queue.SimpleQueue()


class StatusFeed:
    """Holds jobs and their statuses; thread-safe.

    Args:
        journal_check: seconds between two reads of the journals of other processes.
        remembered: ended jobs that are kept.
    """

    def __init__(self, journal_check: float, remembered: int = _REMEMBERED) -> None:
        self._journal_check = journal_check
        self._changed = threading.Condition()
        self._remembered = remembered
        self._jobs: dict[str, tuple[Job, JobStatus, str]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._subscriptions: list[_Subscription] = []
        self._closed = False

    def add(self, job: Job, run_id: str, host: str) -> None:
        """Add a job, pending.

        Args:
            job: the job.
            run_id: the run whose streams have its changes.
            host: name of the host that it runs on.
        """
        with self._changed:
            status = JobStatus(state=JobState.PENDING, host=host)
            self._jobs[job.id] = (job, status, run_id)

    def publish(self, job_id: str, status: JobStatus) -> None:
        """Store a job's status and put it on the streams; dropped after a final status."""
        with self._changed:
            known = self._jobs.get(job_id)
            if known is None or known[1].state.is_terminal:
                return
            job, _, run_id = known
            self._jobs[job_id] = (job, status, run_id)
            for subscription in self._subscriptions:
                if subscription.run_id == run_id:
                    subscription.queue.put((job, status))
            if status.state.is_terminal:
                self._ended[job_id] = None
                while len(self._ended) > self._remembered:
                    del self._jobs[self._ended.popitem(last=False)[0]]
            self._changed.notify_all()

    def forget(self, job_id: str) -> None:
        """Forget a job, whose status is read from its journal from now on."""
        with self._changed:
            self._jobs.pop(job_id, None)

    def status(self, job_id: str) -> JobStatus | None:
        """Return the latest status of a job; None where it is not known."""
        with self._changed:
            known = self._jobs.get(job_id)
            return None if known is None else known[1]

    def wait_placed(self, job_ids: list[str], timeout: float) -> bool:
        """Wait until none of the jobs is pending; False after ``timeout`` seconds."""

        def placed() -> bool:
            return all(
                known is None or known[1].state is not JobState.PENDING
                for known in map(self._jobs.get, job_ids)
            )

        with self._changed:
            return self._changed.wait_for(placed, timeout)

    def events(
        self, run_id: str, follower: JournalFollower | None = None
    ) -> Iterator[tuple[Job, JobStatus]]:
        """Yield the present statuses of a run's jobs, then every change, until :meth:`close`.

        Args:
            run_id: the run.
            follower: polled for jobs that other processes submitted.
        """
        subscription = _Subscription(run_id)
        with self._changed:
            for job, status, run in self._jobs.values():
                if run == run_id:
                    subscription.queue.put((job, status))
            if self._closed:
                subscription.queue.put(None)
            else:
                self._subscriptions.append(subscription)
        return self._drain(subscription, follower)

    def close(self) -> None:
        """End all streams, after the changes that are queued. Idempotent."""
        with self._changed:
            self._closed = True
            for subscription in self._subscriptions:
                subscription.queue.put(None)
            self._subscriptions.clear()
            self._changed.notify_all()

    def _drain(
        self, subscription: _Subscription, follower: JournalFollower | None
    ) -> Iterator[tuple[Job, JobStatus]]:
        try:
            while True:
                following = follower is not None and follower.is_active
                if follower is not None and following:
                    yield from follower.changes()
                try:
                    item = subscription.queue.get(
                        timeout=self._journal_check if following else None
                    )
                except queue.Empty:
                    continue
                if item is None:
                    return
                yield item
        finally:
            with self._changed:
                if subscription in self._subscriptions:
                    self._subscriptions.remove(subscription)
