"""Feed of job statuses: the latest status of each job, and streams of changes; statuses of jobs that ended."""

from __future__ import annotations

import queue
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from fiber._base import values
from fiber.model import Job, JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["Feed", "ended", "exit_code", "failed", "with_log_tail"]

#: ended jobs that are remembered; the platform may know the others
_REMEMBERED = 10_000
_Change = tuple[Job, JobStatus]
_SIGNALS = frozenset(map(int, signal.valid_signals()))
_Queue = queue.SimpleQueue[_Change | None]


class Feed:
    """Jobs with their latest statuses, and subscribers to their changes; thread-safe.

    Args:
        on_end: called with each job that ended, on the thread that published its end.
    """

    def __init__(self, on_end: Callable[[Job], None] = lambda _: None) -> None:
        self._on_end = on_end
        self._changed = threading.Condition()
        self._jobs: dict[str, _Change] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._subscribers: list[tuple[str, _Queue]] = []
        self._closed = False

    def add(self, job: Job, status: JobStatus) -> None:
        """Remember a new job, of whose first status open streams need not be told."""
        with self._changed:
            self._jobs[job.id] = (job, status)

    def forget(self, job_id: str) -> None:
        """Forget a job, of whose changes others know from now on; an unknown one is no error."""
        with self._changed:
            self._jobs.pop(job_id, None)

    def publish(self, job: Job, status: JobStatus) -> None:
        """Publish a job's status; a step backwards, and anything after its end, is dropped."""
        with self._changed:
            known = self._jobs.get(job.id)
            if known is not None and not _is_news(known[1], status):
                return
            self._jobs[job.id] = (job, status)
            for run_id, subscriber in self._subscribers:
                if run_id == job.run_id:
                    subscriber.put((job, status))
            if status.state.is_terminal:
                self._ended[job.id] = None
                while len(self._ended) > _REMEMBERED:
                    self._jobs.pop(self._ended.popitem(last=False)[0], None)
            self._changed.notify_all()
        if status.state.is_terminal:
            self._on_end(job)

    def job(self, job_id: str) -> Job | None:
        """A job by its id; None where it is not remembered."""
        known = self._jobs.get(job_id)
        return None if known is None else known[0]

    def status(self, job_id: str) -> JobStatus | None:
        """Latest status of a job; None where it is not remembered."""
        known = self._jobs.get(job_id)
        return None if known is None else known[1]

    def end(self, job_id: str) -> JobStatus | None:
        """Status of a job that has ended; None for others, and where it is not remembered."""
        status = self.status(job_id)
        return status if status is not None and status.state.is_terminal else None

    def last_lines(self, job_id: str, tail: int | None) -> list[str]:
        """Last lines that are in the status of a job, whose log may be gone."""
        status = self.status(job_id)
        lines = [] if status is None else [l for p in status.processes for l in p.log_tail]  # noqa: E741
        return lines if tail is None else lines[max(0, len(lines) - tail) :]

    def running(self, run_id: str) -> list[Job]:
        """Jobs of a run whose latest status is neither pending nor an end."""
        with self._changed:
            return [
                job
                for job, status in self._jobs.values()
                if job.run_id == run_id
                and status.state is not JobState.PENDING
                and not status.state.is_terminal
            ]

    def wait_placed(self, job_ids: list[str], timeout: float | None) -> bool:
        """True once none of the jobs is pending any more; False after ``timeout`` seconds."""

        def placed() -> bool:
            return self._closed or all(
                known is None or known[1].state is not JobState.PENDING
                for known in map(self._jobs.get, job_ids)
            )

        with self._changed:
            return self._changed.wait_for(placed, timeout)

    def wait_ended(self, job_id: str, timeout: float) -> bool:
        """True once a job has ended, or is not known; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: job_id in self._ended or job_id not in self._jobs or self._closed, timeout
            )

    def events(
        self,
        run_id: str,
        poll: Callable[[], Iterable[_Change] | None] = lambda: None,
        interval: float = 0.0,
    ) -> Iterator[_Change]:
        """The present status of a run's jobs, then every change, until :meth:`close`.

        Args:
            run_id: the run.
            poll: returns changes of jobs that nobody publishes here; None once none are left.
            interval: seconds between two calls of it.
        """
        mine: _Queue = queue.SimpleQueue()
        with self._changed:
            for job, status in self._jobs.values():
                if job.run_id == run_id:
                    mine.put((job, status))
            if self._closed:
                mine.put(None)
            else:
                self._subscribers.append((run_id, mine))
        return self._drain(run_id, mine, poll, interval)

    def close(self) -> None:
        """End all streams, once they have delivered what is queued. Idempotent."""
        with self._changed:
            self._closed = True
            for _, subscriber in self._subscribers:
                subscriber.put(None)
            self._subscribers.clear()
            self._changed.notify_all()

    def _drain(
        self,
        run_id: str,
        mine: _Queue,
        poll: Callable[[], Iterable[_Change] | None],
        interval: float,
    ) -> Iterator[_Change]:
        try:
            while True:
                others = poll()
                yield from others or ()
                try:
                    item = mine.get(timeout=None if others is None else interval)
                except queue.Empty:
                    continue
                if item is None:
                    return
                yield item
        finally:
            with self._changed:
                self._subscribers = [one for one in self._subscribers if one != (run_id, mine)]


def _is_news(before: JobStatus, now: JobStatus) -> bool:
    if before.state.is_terminal or now == before:
        return False
    # an event may come after a query whose answer is newer
    return not (now.state is JobState.PENDING and before.state is not JobState.PENDING)


def exit_code(code: int) -> int:
    """A process's exit code from that of a shell or an engine, which is 128 and the number of a signal."""
    return 128 - code if code - 128 in _SIGNALS else code


def ended(code: int, message: str = "", host: str | None = None) -> JobStatus:
    """Return the status of a job that ended with an exit code, minus a signal's number where one ended it."""
    return JobStatus(
        state=JobState.FAILED if code else JobState.SUCCEEDED,
        reason=Reason(ReasonKind.SIGNAL if code < 0 else ReasonKind.EXIT, abs(code)),
        exit_code=code,
        message=message,
        host=host,
    )


def failed(
    kind: ReasonKind, message: str, code: int | None = None, host: str | None = None
) -> JobStatus:
    """Return the status of a job that has failed for another reason."""
    return JobStatus(
        state=JobState.FAILED, reason=Reason(kind), exit_code=code, message=message, host=host
    )


def with_log_tail(status: JobStatus, lines: tuple[str, ...]) -> JobStatus:
    """Return the terminal status of a job of one process with the last lines that it wrote."""
    if not lines:
        return status
    process = ProcessStatus(
        index=0,
        state=status.state,
        reason=status.reason,
        exit_code=status.exit_code,
        message=status.message,
        log_tail=lines,
    )
    return values.evolve(status, processes=(process,))
