"""The local backend; see the package's docstring."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fiber._agent.supervisor import JOURNAL
from fiber._base import values
from fiber._base.interpreter import working_folder
from fiber._base.log import lazy_logger
from fiber.abc import Backend
from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendError, SubmitError, UnknownJobError
from fiber.model import (
    BackendContext,
    Capacity,
    Check,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Reach,
    ReachKind,
    Reason,
    ReasonKind,
)
from fiber_local.config import LocalConfig, LocalTiming
from fiber_local.supervisors import HostDevices, Supervisors

if TYPE_CHECKING:
    from fiber._agent.supervisor.journal import JournaledJob
    from fiber._agent.supervisor.messages import Accepted
    from fiber_local.host_jobs import Journals

__all__ = ["LocalBackend"]

log = lazy_logger()

_LOST = Reason(ReasonKind.NODE_LOST)


class LocalBackend(Backend):
    """Runs jobs as processes of this machine.

    Args:
        context: settings and run; no process is started before the first job.
    """

    name = "local"

    def __init__(self, context: BackendContext) -> None:
        config = context.config if isinstance(context.config, LocalConfig) else LocalConfig()
        self._context = context
        self._host = socket.gethostname()
        self._timing = LocalTiming.at(context.timing.scale)
        self._feed = Feed()
        self._devices = HostDevices(context.providers)
        self._supervisors = Supervisors(context, config, self._host, self._devices, self._publish)
        self._lock = threading.Lock()
        self._ending_threads: list[threading.Thread] = []
        self._owner = os.getpid()

    @functools.cached_property
    def _journals(self) -> Journals:
        # as all of host_jobs, for those who ask for jobs of other processes
        from fiber_local.host_jobs import Journals

        return Journals(self._context.run_directory)

    # -- jobs ---------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Start the supervisor, which imports the modules of jobs in parallel to this process."""
        self._supervisors.start()

    def submit(self, spec: JobSpec) -> Job:
        """Start a job; when this returns it runs, or waits for a device; where it is interrupted it is killed."""
        if not spec.argv and spec.entry is None:
            msg = f"{spec.name} has no program to run: argv is empty"
            raise SubmitError(msg)
        plain = _with_builtin_types(spec)
        jobs: list[Job] = []
        is_given_up = False

        def accepted(reply: Accepted) -> None:
            jobs.append(self._job(plain, reply))
            self._feed.add(jobs[-1], JobStatus(state=JobState.PENDING, host=self._host))
            if is_given_up:
                self._end_on_thread(jobs[-1])

        supervisors = self._supervisors
        start = supervisors.submit_detached if spec.detached else supervisors.submit
        try:
            reply = start(plain, accepted, cwd=working_folder() or "/")
            for warning in reply.warnings:
                log.warning("fiber: %s: %s", spec.name, warning)
            return jobs[-1]
        except BaseException:
            # interrupted, perhaps before it was accepted: nobody will know of it
            is_given_up = True
            for job in jobs:
                self._end_on_thread(job)
            raise

    def _end_on_thread(self, job: Job) -> None:
        # neither one that was interrupted may wait for the answer, nor the one that reads it
        thread = threading.Thread(
            target=self.kill, args=(job,), name=f"fiber-end-{job.id}", daemon=True
        )
        thread.start()
        self._join_at_close(thread)

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Return a stream of (job, status) of a run's jobs.

        Of this backend's run it has the jobs submitted here, and those that other processes had
        submitted when the stream was opened; of other runs all.
        """
        is_own = run_id == self._context.run_id
        if is_own and not self._has_journal():
            return self._feed.events(run_id)
        from fiber_local.host_jobs import JournalFollower

        follower = JournalFollower(
            lambda: self._journaled_run(run_id),
            self._is_ours,
            is_open=not is_own,
        )
        return self._feed.events(run_id, follower.changes, self._timing.journal_check)

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """Return the present status of jobs, also of those that other processes submitted."""
        return [self._status(job) for job in jobs]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """Send SIGTERM now, and SIGKILL to the processes that are left after ``grace`` seconds."""
        if self._is_ours(job):
            self._supervisors.call(job.id, lambda client: client.terminate(job.id, grace))
            return
        from fiber_local import host_jobs

        thread = host_jobs.end_processes(self._signallable(job), grace)
        if thread is not None:
            self._join_at_close(thread)

    def kill(self, job: Job) -> None:
        """Send SIGKILL to all processes of a job."""
        if self._is_ours(job):
            self._supervisors.call(job.id, lambda client: client.kill(job.id))
        else:
            from fiber_local import host_jobs

            host_jobs.end_processes(self._signallable(job), None)

    def signal(self, job: Job, index: int, signum: int) -> None:
        """Send a signal to one process of a job."""
        if self._is_ours(job):
            self._supervisors.call(job.id, lambda client: client.signal(job.id, index, signum))
        else:
            from fiber_local import host_jobs

            host_jobs.signal_processes(self._signallable(job), signum, index)

    def interrupt(self, job: Job) -> bool:
        """Send SIGINT to a job, unless its supervisor has passed one on already."""
        sent: list[bool] = []
        if self._is_ours(job):
            self._supervisors.call(job.id, lambda client: sent.append(client.interrupt(job.id)))
            return any(sent)
        return super().interrupt(job)

    def preload(self, modules: Sequence[str]) -> None:
        """Make the supervisor import modules."""
        self._supervisors.preload(tuple(modules))

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        from fiber.backend_parts.logfile import read_log

        self._status(job)
        path = Path(str(job.data["directory"]), "logs", f"{job.id}.log")
        return read_log(
            path,
            tail=tail,
            is_over=(lambda: self._status(job).state.is_terminal) if follow else None,
            interval=self._timing.log_check,
        )

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """Jobs of one run or of all runs of this user on this host, ended ones included."""
        return [
            job.job(self.name, directory=str(directory))
            for directory, job in self._journals.jobs(run_id)
        ]

    def cleanup(self, run_id: str) -> None:
        """Kill the jobs of a run and remove their logs and journals."""
        if run_id == self._context.run_id:
            self._supervisors.end()
        from fiber_local import host_jobs

        jobs = list(self._journals.jobs(run_id))
        host_jobs.end_all([job for _, job in jobs], self._context.timing.kill)
        for directory in dict.fromkeys(directory for directory, _ in jobs):
            host_jobs.forget(directory)

    # -- the platform -------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Return this process's CPUs and memory (MB), and devices of the kinds that were probed."""
        from fiber._base.cgroups import cpu_count, memory_total

        return Capacity(
            cpus=float(cpu_count()), memory=memory_total(), devices=self._devices.known()
        )

    def reach(self, job: Job) -> Reach:
        """Return that jobs dial directly: by Unix sockets or loopback."""
        return Reach(ReachKind.DIRECT, "both are processes of this host")

    def check(self) -> Iterable[Check]:
        """Check this host, with a supervisor and a job of their own."""
        from fiber_local.checks import run_checks

        return run_checks(self._context.providers, self._context.timing)

    def close(self) -> None:
        """Kill all jobs that are not detached, and end the supervisors."""
        if os.getpid() != self._owner:
            return
        with contextlib.ExitStack() as stack:
            # also where Ctrl-C cuts short what comes before
            stack.callback(self._feed.close)
            for job_id in self._supervisors.close():
                self._feed.forget(job_id)
            with self._lock:
                ending, self._ending_threads = self._ending_threads, []
            for thread in ending:
                thread.join()

    # -- within -------------------------------------------------------------------------------

    def _job(self, spec: JobSpec, reply: Accepted) -> Job:
        return Job(
            id=reply.job_id,
            name=spec.name,
            run_id=spec.run_id,
            backend=self.name,
            data={
                "pids": list(reply.pids),
                "host": self._host,
                "directory": self._supervisors.directory,
            },
        )

    def _has_journal(self) -> bool:
        """True where jobs were submitted in this backend's run, by whichever process."""
        try:
            return os.stat(f"{self._supervisors.directory}/{JOURNAL}").st_size > 0  # noqa: PTH116 - as elsewhere
        except FileNotFoundError:
            return False

    def _join_at_close(self, thread: threading.Thread) -> None:
        with self._lock:
            self._ending_threads = [t for t in self._ending_threads if t.is_alive()]
            self._ending_threads.append(thread)

    def _publish(self, job_id: str, status: JobStatus) -> None:
        job = self._feed.job(job_id)
        if job is not None:
            self._feed.publish(job, status)

    def _is_ours(self, job: Job) -> bool:
        return self._feed.status(job.id) is not None

    def _status(self, job: Job) -> JobStatus:
        status = self._feed.status(job.id)
        if status is not None:
            return status
        status = self._journaled(job).status()
        if status.reason == _LOST:
            # the supervisor may have written the end and ended after the journal was read
            status = self._journaled(job).status()
        return status

    def _journaled_run(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        for directory, found in self._journals.jobs(run_id):
            job = found.job(self.name, directory=str(directory))
            if not self._is_ours(job):
                status = found.status()
                yield job, self._status(job) if status.reason == _LOST else status

    def _signallable(self, job: Job) -> JournaledJob:
        """Return a job of another process; raise where it cannot be signalled from here."""
        found = self._journaled(job)
        status = found.status()
        if status.state is JobState.UNKNOWN:
            msg = f"{job.name} ({job.id}) cannot be signalled from here: {status.message}; end it there"
            raise BackendError(msg)
        return found

    def _journaled(self, job: Job) -> JournaledJob:
        directory = job.data.get("directory")
        found = self._journals.find(directory, job.id) if isinstance(directory, str) else None
        if found is None:
            msg = f"there is no job {job.id} ({job.name}) on {self._host}"
            raise UnknownJobError(msg)
        return found


def _with_builtin_types(spec: JobSpec) -> JobSpec:
    """Return a spec with built-in types alone, as the supervisor's protocol has them."""
    return values.evolve(
        spec,
        argv=tuple(map(str, spec.argv)),
        env={str(key): str(value) for key, value in spec.env.items()},
        unset_env=frozenset(map(str, spec.unset_env)),
        labels={str(key): str(value) for key, value in spec.labels.items()},
        cwd=None if spec.cwd is None else os.fspath(spec.cwd),
    )
