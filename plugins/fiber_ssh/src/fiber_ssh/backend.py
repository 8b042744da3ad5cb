"""The ssh backend: jobs are processes of other machines, kept by an agent on each."""

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
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    CapabilityError,
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
from fiber_ssh.config import SshConfig
from fiber_ssh.desk import Desk
from fiber_ssh.follows import lines
from fiber_ssh.hosts import read_hosts
from fiber_ssh.lookup import PATIENCE, ask_all, find
from fiber_ssh.order import Order
from fiber_ssh.station import Station
from fiber_ssh.status import job_of, status_of

__all__ = ["SshBackend"]

log = logging.getLogger("fiber")

_LEASE = 30.0


class SshBackend(Backend):
    """Runs jobs on machines that one reaches by ssh.

    Args:
        context: settings and run; nothing is connected before it is needed.

    Raises:
        ConfigError: no hosts are named, or they make no sense.
    """

    name = "ssh"

    def __init__(self, context: BackendContext) -> None:
        self._config = context.config if isinstance(context.config, SshConfig) else SshConfig()
        self._context = context
        self._owner = os.getpid()
        self._desk = self._open(context.run_id)

    def _open(self, run_id: str | None) -> Desk:
        lease = self._context.lease
        return Desk(
            read_hosts(self._config),
            self._config,
            backend=self.name,
            run_id=run_id,
            lease=_LEASE if lease is None else lease,
            providers=self._context.providers,
        )

    # -- jobs ---------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Connect to all hosts."""
        self._desk.begin()

    def submit(self, spec: JobSpec) -> Job:
        """Accept a job; it goes to a host at once, or waits for room."""
        if spec.image is not None:
            raise CapabilityError(self.name, "images", f"image {spec.image!r}")
        if spec.volumes:
            raise CapabilityError(self.name, "volumes", f"volume {spec.volumes[0].source!r}")
        if spec.processes > 1:
            raise CapabilityError(self.name, "fork", f"{spec.processes} processes in one job")
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
        self._desk.submit(Order(job, spec))
        return job

    def submit_group(self, specs: Sequence[JobSpec], timeout: float) -> Sequence[Job]:
        """Start all jobs or none."""
        return self.start_group(
            specs,
            timeout,
            lambda jobs, seconds: self._desk.feed.wait_placed([job.id for job in jobs], seconds),
        )

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Changes of the jobs of a run, whoever submitted them."""
        stream = self._desk.feed.events(run_id)
        self._watch(run_id)
        return stream

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """The present status of jobs, also of those that others submitted."""
        return [self._status(job) for job in jobs]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """SIGTERM to the job's first process; SIGKILL to all that is left after the grace."""
        self._tell(job, "terminate", grace=grace)

    def kill(self, job: Job) -> None:
        """SIGKILL to all processes of a job."""
        self._tell(job, "kill")

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        order = self._desk.order(job.id)
        # it has written nothing before it has a host
        if (
            order is not None
            and order.host is None
            and not (follow and self._desk.wait_given(job.id))
        ):
            return iter(())
        station = self._station(job)
        pieces: queue.SimpleQueue[bytes | BackendError | None] = queue.SimpleQueue()
        link = station.link
        one = link.follows.add(
            job.id,
            lambda _, data: pieces.put(data),
            pieces.put,
            tail=tail,
            follow=follow,
        )
        # not before the agent was told of the job
        station.soon(lambda: link.follow(one))

        def took(count: int) -> None:
            link.post("took", number=one.number, count=count)

        def drain() -> Iterator[str]:
            try:
                yield from lines(pieces, took)
            finally:
                link.follows.forget(one.number)
                link.post("unfollow", number=one.number)

        return drain()

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

        return execute(self._station(job).link, argv, stdin=stdin, tty=tty)

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """The jobs there are on the hosts that can be reached, those that wait included."""
        found: dict[str, Job] = {}
        for station, answer in ask_all(self._desk, "list", run=run_id):
            for record in answer["jobs"]:
                found[record["id"]] = job_of(record, self.name, station.host.name)
        # some have no host yet, and some hosts have not heard yet
        for order in self._desk.alive():
            if run_id in (None, order.job.run_id):
                found.setdefault(order.job.id, order.job)
        return list(found.values())

    def cleanup(self, run_id: str) -> None:
        """End the jobs of a run and remove what they left on the hosts that can be reached."""
        if self._desk.is_closed:
            # its connections are closed, and what it left is on the hosts
            desk = self._open(None)
            try:
                ask_all(desk, "cleanup", run=run_id)
            finally:
                desk.close()
            return
        self._desk.cancel_waiting(run_id)
        if run_id != self._context.run_id or self._desk.has_begun:
            ask_all(self._desk, "cleanup", run=run_id)

    # -- the platform -------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Slots and memory of the hosts that can be reached, and devices that are free."""
        rooms = self._desk.rooms(self._desk.up(every=True))
        devices: dict[str, int] = {}
        for room in rooms:
            for kind, count in room.free_devices.items():
                devices[kind] = devices.get(kind, 0) + count
        memory = [s.link.about.memory for s in self._desk.stations if s.link.about]
        return Capacity(cpus=sum(r.slots for r in rooms), memory=sum(memory), devices=devices)

    def reach(self, job: Job) -> Reach:
        """How a job and this program meet, found out when hosts were first used."""
        order = self._desk.order(job.id)
        landing = None if order is None else order.landing
        if self._config.reach == "reversed" or landing is not None:
            return Reach(ReachKind.REVERSED, "streams over the ssh connection of its host")
        return Reach(ReachKind.DIRECT, "the job dials this machine, unless its host cannot")

    def open_stream(self, job: Job) -> socket.socket:
        """A channel of its host's connection, to where the job's supervisor waits for it."""
        order = self._desk.order(job.id)
        if order is None or order.host is None or order.landing is None:
            msg = f"{job.name} waits for no streams of this program now"
            raise BackendUnavailableError(msg)
        station = self._desk.stations[order.host]
        return station.streams.open(station.link.transport, order.landing)

    def check(self) -> Iterable[Check]:
        """Check all hosts, with a job on each."""
        from fiber_ssh.checks import run_checks

        return run_checks(self._context)

    def close(self) -> None:
        """End all jobs that are not detached, and the connections."""
        if os.getpid() == self._owner:
            self._desk.close()

    # -- within -------------------------------------------------------------------------------

    def _status(self, job: Job) -> JobStatus:
        status = self._desk.feed.status(job.id)
        order = self._desk.order(job.id)
        if order is not None and status is not None:
            # changes are told by its host as they come, while it can be asked
            link = None if order.host is None else self._desk.stations[order.host].link
            if status.state.is_terminal or link is None or link.is_up:
                return status
        station, record = find(self._desk, job)
        return status_of(record, station.host.name)

    def _station(self, job: Job) -> Station:
        order = self._desk.order(job.id)
        if order is not None and order.host is not None:
            return self._desk.stations[order.host]
        return find(self._desk, job)[0]

    def _watch(self, run_id: str) -> None:
        if run_id != self._context.run_id:
            self._desk.begin()
            for station in self._desk.stations:
                station.link.watch(run_id)

    def _tell(self, job: Job, op: str, **fields: object) -> None:
        order = self._desk.order(job.id)
        status = self._desk.feed.status(job.id)
        if status is not None and status.state.is_terminal:
            return
        if order is not None:
            self._desk.tell(order, op, **fields)
            return
        station, _ = find(self._desk, job)
        try:
            station.link.request(op, timeout=PATIENCE, job=job.id, **fields)
        except UnknownJobError:
            # it was removed since
            return
