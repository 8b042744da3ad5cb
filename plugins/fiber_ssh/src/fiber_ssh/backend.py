"""The ssh backend: jobs are processes on other machines, run by an agent on each."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from fiber.abc import Backend
from fiber.backend_parts.logfile import split_lines
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    SubmitError,
    UnknownJobError,
)
from fiber.model import (
    BackendContext,
    Capacity,
    Check,
    Job,
    JobSpec,
    JobStatus,
    Reach,
    ReachKind,
)
from fiber_ssh.config import LEASE, SshConfig
from fiber_ssh.host_state import HostState
from fiber_ssh.hosts import read_hosts
from fiber_ssh.scheduler import JobScheduler, find_job, query_all
from fiber_ssh.submission import Submission, read_record

log = logging.getLogger("fiber")


class SshBackend(Backend):
    """Backend that runs jobs on machines reached by ssh.

    Args:
        context: settings and run; hosts are connected to on first use.

    Raises:
        ConfigError: no hosts are named, or they make no sense.
    """

    name = "ssh"

    def __init__(self, context: BackendContext) -> None:
        self._config = context.config if isinstance(context.config, SshConfig) else SshConfig()
        self._context = context
        self._owner = os.getpid()
        self._scheduler = self._open(context.run_id)

    def _open(self, run_id: str | None) -> JobScheduler:
        lease = self._context.lease
        return JobScheduler(
            read_hosts(self._config),
            self._config,
            backend=self.name,
            run_id=run_id,
            lease=LEASE if lease is None else lease,
            timing=self._context.timing,
            providers=self._context.providers,
        )

    # -- jobs ---------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Connect to all hosts."""
        self._scheduler.start()

    def submit(self, spec: JobSpec) -> Job:
        """Accept a job; it is sent to a host at once, or waits for free slots."""
        if not spec.argv:
            msg = f"{spec.name} has no program to run: argv is empty"
            raise SubmitError(msg)
        job = Job(
            id=f"{spec.run_id}-{secrets.token_hex(5)}",
            name=spec.name,
            run_id=spec.run_id,
            backend=self.name,
            argv=spec.argv,
            submitted=time.time(),
        )
        self._scheduler.submit(Submission(job, spec))
        return job

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Changes of the jobs of a run, also of those that other programs submitted."""
        stream = self._scheduler.feed.events(run_id)
        self._watch(run_id)
        return stream

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """The present status of jobs, also of those that other programs submitted."""
        return [self._status(job) for job in jobs]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """SIGTERM to the job's first process; SIGKILL to all that is left after the grace."""
        self._request_end(job, "terminate", grace=grace)

    def kill(self, job: Job) -> None:
        """SIGKILL to all processes of a job."""
        self._request_end(job, "kill")

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        submission = self._scheduler.submission(job.id)
        if submission is not None:
            # it has written nothing before it has a host, nor where it ended before its host had it
            if submission.host is None and not (follow and self._scheduler.wait_assigned(job.id)):
                return iter(())
            if self._scheduler.feed.end(job.id) and not submission.confirmed:
                return iter(())
        host_state = self._host_state(job)
        self._scheduler.host_states.wait_reconnected(host_state)
        pieces: queue.SimpleQueue[bytes | BackendError | None] = queue.SimpleQueue()
        link = host_state.link
        one = link.followers.add(
            job.id,
            lambda _, data: pieces.put(data),
            pieces.put,
            tail=tail,
            follow=follow,
        )
        # after the request that submits the job
        host_state.enqueue(lambda: link.follow(one))

        def taken() -> Iterator[bytes]:
            try:
                while (piece := pieces.get()) is not None:
                    if isinstance(piece, BackendError):
                        raise piece
                    link.notify("took", number=one.number, count=len(piece))
                    yield piece
            finally:
                link.followers.forget(one.number)
                link.notify("unfollow", number=one.number)

        return split_lines(taken())

    def exec(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None = None,
        tty: bool = False,
    ) -> int:
        """Run a program on a job's host, its output to ours; return its exit code."""
        from fiber_ssh.execution import execute

        timeout = self._config.connect_timeout
        return execute(self._host_state(job).link, argv, timeout=timeout, stdin=stdin, tty=tty)

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """The jobs on the hosts that can be reached, and those that wait for a host."""
        found: dict[str, Job] = {}
        for host_state, answer in query_all(self._scheduler, "list", run=run_id):
            for record in answer["jobs"]:
                job, _ = read_record(record, self.name, host_state.host.name)
                found[job.id] = job
        # some have no host yet, and some submissions have not arrived yet
        for submission in self._scheduler.alive():
            if run_id in (None, submission.job.run_id):
                found.setdefault(submission.job.id, submission.job)
        return list(found.values())

    def cleanup(self, run_id: str) -> None:
        """End the jobs of a run and remove their files, on the hosts that can be reached."""
        if self._scheduler.is_closed:
            # the connections are closed, but files are left on the hosts
            scheduler = self._open(None)
            try:
                query_all(scheduler, "cleanup", run=run_id)
            finally:
                scheduler.close()
            return
        self._scheduler.cancel_waiting(run_id)
        if run_id != self._context.run_id or self._scheduler.is_started:
            query_all(self._scheduler, "cleanup", run=run_id)

    # -- the platform -------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Slots and memory of the hosts that can be reached, and devices that are free."""
        capacities = self._scheduler.capacities(self._scheduler.wait_connected(every=True))
        devices: dict[str, int] = {}
        for capacity in capacities:
            for kind, count in capacity.free_devices.items():
                devices[kind] = devices.get(kind, 0) + count
        memory = [s.link.info.memory for s in self._scheduler.host_states if s.link.info]
        return Capacity(cpus=sum(r.slots for r in capacities), memory=sum(memory), devices=devices)

    def reach(self, job: Job) -> Reach:
        """The route between a job and this program, chosen when its host was first used."""
        submission = self._scheduler.submission(job.id)
        stream_port = None if submission is None else submission.stream_port
        if self._config.reach == "reversed" or stream_port is not None:
            return Reach(ReachKind.REVERSED, "streams over the ssh connection of its host")
        return Reach(ReachKind.DIRECT, "the job dials this machine, unless its host cannot")

    def open_stream(self, job: Job) -> socket.socket:
        """A socket joined to a channel of its host's connection, to the job's supervisor."""
        submission = self._scheduler.submission(job.id)
        if submission is None or submission.host is None or submission.stream_port is None:
            msg = f"{job.name} waits for no streams of this program now"
            raise BackendUnavailableError(msg)
        host_state = self._scheduler.host_states[submission.host]
        return host_state.streams.open(host_state.link.transport, submission.stream_port)

    def check(self) -> Iterable[Check]:
        """Check all hosts, with a job on each."""
        from fiber_ssh.checks import run_checks

        return run_checks(self._context)

    def close(self) -> None:
        """End all jobs that are not detached, and the connections."""
        if os.getpid() == self._owner:
            self._scheduler.close()

    # -- private -------------------------------------------------------------------------------

    def _status(self, job: Job) -> JobStatus:
        status = self._scheduler.feed.status(job.id)
        submission = self._scheduler.submission(job.id)
        if submission is not None and status is not None:
            host = submission.host
            if status.state.is_terminal or host is None:
                return status
            # while its host is connected, the feed is up to date
            if self._scheduler.host_states[host].link.is_up:
                return status
        host_state, record = find_job(self._scheduler, job)
        return read_record(record, self.name, host_state.host.name)[1]

    def _host_state(self, job: Job) -> HostState:
        submission = self._scheduler.submission(job.id)
        if submission is not None and submission.host is not None:
            return self._scheduler.host_states[submission.host]
        return find_job(self._scheduler, job)[0]

    def _watch(self, run_id: str) -> None:
        if run_id != self._context.run_id:
            self._scheduler.start()
            for host_state in self._scheduler.host_states:
                host_state.link.watch(run_id)

    def _request_end(self, job: Job, op: str, **fields: object) -> None:
        submission = self._scheduler.submission(job.id)
        if self._scheduler.feed.end(job.id):
            return
        if submission is not None:
            self._scheduler.request_end(submission, op, **fields)
            return
        host_state, _ = find_job(self._scheduler, job)
        try:
            host_state.link.call(op, job=job.id, **fields)
        except UnknownJobError:
            # it was removed since
            return
