"""Runs jobs for the backend kit: submits, waits for statuses on the event stream, cleans up."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fiber.abc import Backend
from fiber.model import Job, JobSpec, JobState, JobStatus
from fiber.testing.witness import JOB_VARIABLE, RUN_VARIABLE

_RANK = {
    JobState.PENDING: 0,
    JobState.RUNNING: 1,
    JobState.SUSPENDED: 1,
    JobState.UNKNOWN: None,
    JobState.SUCCEEDED: 2,
    JobState.FAILED: 2,
}


class Driver:
    """Run of jobs on one backend, with all statuses of its event stream.

    Args:
        backend: backend to run jobs on.
        run_id: id of the run.
        python: Python that jobs run.
        image: image that they run in, where the backend runs images.
        patience: timeout in seconds of any one wait.
    """

    def __init__(
        self, backend: Backend, run_id: str, *, python: str, image: str | None, patience: float
    ) -> None:
        self.backend = backend
        self.run_id = run_id
        self.patience = patience
        self._python = python
        self._image = image
        self._statuses: dict[str, list[JobStatus]] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stream: threading.Thread | None = None

    def spec(self, argv: Sequence[str], **fields: Any) -> JobSpec:
        """Make the specification of a job of this run; ``argv`` as :mod:`fiber.testing.programs` makes it."""
        fields.setdefault("name", f"kit-{secrets.token_hex(3)}")
        fields.setdefault("run_id", self.run_id)
        marks = {JOB_VARIABLE: fields["name"], RUN_VARIABLE: fields["run_id"]}
        fields["env"] = {**marks, **fields.get("env", {})}
        fields.setdefault("image", self._image)
        return JobSpec(argv=(self._python, *argv[1:]), **fields)

    def submit(self, argv: Sequence[str], **fields: Any) -> Job:
        """Submit a job."""
        return self.backend.submit(self.spec(argv, **fields))

    def run(self, argv: Sequence[str], **fields: Any) -> JobStatus:
        """Submit a job and wait for its end."""
        return self.end(self.submit(argv, **fields))

    def ready(self, argv: Sequence[str], **fields: Any) -> Job:
        """Submit a job and wait until it has printed ``ready``."""
        job = self.submit(argv, **fields)
        self.wait_ready(job)
        return job

    def wait_ready(self, job: Job) -> list[str]:
        """Wait until a job has printed ``ready``; returns the lines before."""
        before: list[str] = []
        lines = self.backend.logs(job, follow=True)
        try:
            for line in lines:
                if line == "ready":
                    return before
                before.append(line)
        finally:
            close = getattr(lines, "close", None)
            if close is not None:
                close()
        msg = f"{job} ended without printing ready: {self.backend.status([job])[0]}; it printed {before}"
        raise AssertionError(msg)

    def wait_running(self, *jobs: Job) -> None:
        """Wait until jobs are reported to run."""
        for job in jobs:
            self.until(job, lambda status: status.state is JobState.RUNNING, "running")

    def end(self, job: Job) -> JobStatus:
        """Wait for a job's terminal status."""
        return self.until(job, lambda status: status.state.is_terminal, "its end")

    def until(
        self, job: Job, fits: Callable[[JobStatus], bool], what: str, *, after: int = 0
    ) -> JobStatus:
        """Wait for a status on the event stream; returns the first that fits.

        Args:
            job: the job.
            fits: predicate for the status.
            what: what is awaited, for the message.
            after: number of the job's statuses to skip.

        Raises:
            AssertionError: none fits in time, or the stream has ended.
        """
        self.watch()
        found: list[JobStatus] = []

        def is_found() -> bool:
            statuses = self._statuses.get(job.id, [])[after:]
            found[:] = [status for status in statuses if fits(status)][:1]
            return bool(found) or self._failure is not None

        with self._changed:
            self._changed.wait_for(is_found, self.patience)
        if found:
            return found[0]
        if self._failure is not None:
            msg = f"the event stream ended while {what} of {job} was awaited"
            raise AssertionError(msg) from self._failure
        msg = f"{what} of {job} was not reported within {self.patience:g} s; reported: {self.statuses(job)}"
        raise AssertionError(msg)

    def statuses(self, job: Job) -> list[JobStatus]:
        """Return all statuses of a job from the event stream so far."""
        with self._changed:
            return list(self._statuses.get(job.id, ()))

    def watch(self) -> None:
        """Open the event stream of the run, once."""
        with self._changed:
            if self._stream is None:
                self._stream = threading.Thread(target=self._follow, name="kit-events", daemon=True)
                self._stream.start()

    def _follow(self) -> None:
        try:
            for job, status in self.backend.events(self.run_id):
                with self._changed:
                    self._statuses.setdefault(job.id, []).append(status)
                    self._changed.notify_all()
            ended: BaseException = StopIteration("the stream ended")
        except BaseException as error:  # it reaches the test in until() or close()
            ended = error
        with self._changed:
            self._failure = ended
            self._changed.notify_all()

    def close(self) -> None:
        """End all jobs, close the backend, and check the statuses of the event stream."""
        self.backend.cleanup(self.run_id)
        self.backend.close()
        if self._stream is not None:
            self._stream.join(self.patience)
            assert not self._stream.is_alive(), "close() did not end the iterator of events()"
            if not isinstance(self._failure, StopIteration):
                msg = "the iterator of events() raised"
                raise AssertionError(msg) from self._failure
        for job, statuses in self._statuses.items():
            self._check_order(job, statuses)

    @staticmethod
    def _check_order(job: str, statuses: Sequence[JobStatus]) -> None:
        ranks = [_RANK[s.state] for s in statuses if _RANK[s.state] is not None]
        assert ranks == sorted(ranks), f"states of {job} went back: {statuses}"  # type: ignore[type-var]
        ends = [status for status in statuses if status.state.is_terminal]
        assert len(ends) <= 1, f"{job} ended more than once: {statuses}"


def is_gone(pid: int, patience: float) -> bool:
    """Wait until a process of this host that is no child of ours has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        # psutil waits on a pidfd where the kernel has them
        deadline = time.monotonic() + patience
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            # there is no event for the end of such a process
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        pass
    return True
