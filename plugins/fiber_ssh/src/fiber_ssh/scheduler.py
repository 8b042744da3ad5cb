"""Scheduling of jobs on hosts: placement, the queue of those that wait, and lost hosts.

One lock guards it. All decisions that need no state are in :mod:`~fiber_ssh.placement`. Behind it are
queries to the agents of all hosts, and the search for a job that another program submitted.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Mapping, Sequence

import attrs

from fiber._agent.supervisor.output import LinePrefix
from fiber._base.threads import CallbackThread
from fiber.abc import ResourceProvider
from fiber.backend_parts.feed import Feed, ended, failed
from fiber.backend_parts.standard_streams import write_all
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    FiberError,
    ResourceError,
    SubmitError,
    UnknownJobError,
)
from fiber.model import Job, JobState, JobStatus, ReasonKind, Timing
from fiber_ssh.agent_link import AgentLink, Request
from fiber_ssh.config import SshConfig, SshTiming
from fiber_ssh.host_state import HostState, HostStates, LeaseMonitor
from fiber_ssh.hosts import Host
from fiber_ssh.placement import HostCapacity, choose, waiting_for
from fiber_ssh.remote.wire import Message
from fiber_ssh.routes import Route, Router
from fiber_ssh.submission import Submission, read_record, submit_fields

log = logging.getLogger("fiber")

#: jobs that are remembered after their end, so that their hosts are known when logs are read
_REMEMBERED = 10_000
_SIGNALS = {"terminate": 15, "kill": 9}


class JobScheduler:
    """All hosts, and the jobs of this program on them; thread-safe.

    The lock of ``_changed`` guards submissions, slots and devices; it is re-entrant, and no request
    to a host is awaited under it. Callbacks of links come on their threads. Without a run of its own
    it queries hosts only.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        config: SshConfig,
        *,
        backend: str,
        run_id: str | None,
        lease: float,
        timing: Timing,
        providers: Mapping[str, ResourceProvider],
    ) -> None:
        self.feed = Feed()
        self.run_id = run_id
        self.lease = lease
        self.timing = SshTiming.at(timing.scale)
        self._config = config
        self._backend = backend
        self._providers = providers
        self._changed = threading.Condition(threading.RLock())
        self._submissions: dict[str, Submission] = {}
        self._queue: dict[str, Submission] = {}
        # apart, so that a terminal that blocks holds up this thread alone
        self._output = CallbackThread("fiber-output")
        self._lease_monitor = LeaseMonitor(
            lease,
            timing,
            self._on_lease_expired,
            lambda name: self.host_states[name].link.disconnect(),
        )
        #: True from the first :meth:`start` on, and from :meth:`close` on
        self.is_started = self.is_closed = False
        self._router = Router(config, lambda: [one.link for one in self.host_states], self.timing)
        self.host_states = HostStates(
            hosts, config, providers, self._make_host_state, self._changed, lease, self.timing
        )

    def _make_host_state(self, host: Host) -> HostState:
        link = AgentLink(
            host,
            self._config,
            run_id=self.run_id,
            lease=self.lease,
            timing=self.timing,
            on_jobs=self._on_attached,
            on_job=self._on_record,
            on_beat=lambda link: self._lease_monitor.renew(link.host.name),
            on_change=self._on_link_change,
        )
        return HostState(link, self._config, self._providers, self.timing)

    # -- hosts

    def start(self) -> None:
        """Start connecting to all hosts; returns at once. Idempotent.

        Raises:
            BackendUnavailableError: it is closed.
        """
        with self._changed:
            if self.is_closed:
                msg = "the ssh backend is closed"
                raise BackendUnavailableError(msg)
            if self.is_started:
                return
            self.is_started = True
        if self.run_id is not None:
            self._lease_monitor.start()
        for host_state in self.host_states:
            host_state.link.start()

    def wait_connected(self, *, every: bool = False) -> list[HostState]:
        """Connected hosts, once there is one; with ``every``, once each was tried.

        Raises:
            BackendUnavailableError: none could be connected to, with the reason for each.
        """
        self.start()
        return self.host_states.wait_connected(every=every)

    def capacities(self, host_states: Sequence[HostState]) -> list[HostCapacity]:
        """Slots and devices of hosts, and those that are free."""
        with self._changed:
            return [host_state.capacity() for host_state in host_states]

    # -- orders

    def submission(self, job_id: str) -> Submission | None:
        """The submission of a job; None where another program submitted it."""
        with self._changed:
            return self._submissions.get(job_id)

    def alive(self) -> list[Submission]:
        """Jobs that have not ended."""
        with self._changed:
            return [one for one in self._submissions.values() if not self._has_ended(one.job.id)]

    def wait_assigned(self, job_id: str) -> bool:
        """Wait until a job has a host; False where it ended first."""

        def is_decided() -> bool:
            submission = self._submissions.get(job_id)
            return submission is None or submission.host is not None or self._has_ended(job_id)

        with self._changed:
            self._changed.wait_for(is_decided)
            submission = self._submissions.get(job_id)
            return submission is not None and submission.host is not None

    def submit(self, submission: Submission) -> None:
        """Accept a job; assign it to a host, or queue it.

        One that is detached is with its host when this returns: this program may end at once.

        Raises:
            BackendUnavailableError: no host is connected.
            ResourceError: no host will ever have enough slots or devices.
            SubmitError: no host has the Python and the fiber-core that it needs; or a detached job has
                ended before a host had it, with the reason.
        """
        request = submission.spec.resources
        kinds = [kind for kind, count in request.devices.items() if count]
        host_states = self.wait_connected(every=bool(kinds))
        self.host_states.probe(kinds)
        usable = self._compatible(host_states, submission)
        try:
            self._accept(submission, usable)
        except ResourceError:
            # another host may have more
            usable = self._compatible(self.wait_connected(every=True), submission)
            self._accept(submission, usable)
        if submission.spec.detached:
            self._wait_confirmed(submission)

    def _wait_confirmed(self, submission: Submission) -> None:
        def is_decided() -> bool:
            return submission.confirmed or self.is_closed or self._has_ended(submission.job.id)

        with self._changed:
            self._changed.wait_for(is_decided)
            if submission.confirmed:
                return
            status = self.feed.status(submission.job.id)
        why = "this program has given it up" if status is None else status.message
        msg = f"{submission.job.name} is on no host: {why}"
        raise SubmitError(msg)

    def _compatible(
        self, host_states: Sequence[HostState], submission: Submission
    ) -> list[HostState]:
        if submission.spec.entry is None:
            return list(host_states)

        def usable(found: Sequence[HostState]) -> list[HostState]:
            return [host_state for host_state in found if not host_state.incompatibility]

        found = usable(host_states) or usable(self.wait_connected(every=True))
        if not found:
            msg = "; ".join(host_state.incompatibility for host_state in host_states)
            raise SubmitError(msg)
        return found

    def _accept(self, submission: Submission, host_states: Sequence[HostState]) -> None:
        request = submission.spec.resources
        with self._changed:
            capacities = self.capacities(host_states)
            name = choose(capacities, request)
            self._submissions[submission.job.id] = submission
            message = "" if name else waiting_for(capacities, request)
            self.feed.publish(submission.job, JobStatus(state=JobState.PENDING, message=message))
            if name is None:
                self._queue[submission.job.id] = submission
            else:
                self._assign(submission, self.host_states[name])

    def _assign(self, submission: Submission, host_state: HostState) -> None:
        submission.host = host_state.host.name
        submission.devices = host_state.allocate(submission.job.id, submission.spec.resources)
        self._changed.notify_all()
        placed = JobStatus(state=JobState.PENDING, host=submission.host, is_starting=True)
        self.feed.publish(submission.job, placed)
        host_state.enqueue(lambda: self._send(submission, host_state))

    def _assign_waiting(self) -> None:
        """Assign queued jobs to hosts, in their order as far as slots and devices are free."""
        with self._changed:
            if self.is_closed or not self._queue:
                return
            up = self.host_states.connected()
            for job_id, submission in list(self._queue.items()):
                fit = [s for s in up if submission.spec.entry is None or not s.incompatibility]
                try:
                    name = choose(self.capacities(fit), submission.spec.resources)
                except ResourceError:
                    # the host that has enough is not connected now
                    continue
                if name is not None:
                    del self._queue[job_id]
                    self._assign(submission, self.host_states[name])

    def _send(self, submission: Submission, host_state: HostState) -> None:
        """Submit the job to the host's agent; on the host's own thread."""
        link, spec = host_state.link, submission.spec
        if self._has_ended(submission.job.id):
            return
        try:
            info = link.info
            if info is None or not link.is_up:
                raise link.unavailable()
            folder = host_state.send_files(spec)
            route = Route() if spec.ident is None else self._router.route(link, spec.urls)
        except (FiberError, OSError) as error:
            if link.is_up:
                self._end(
                    submission, failed(ReasonKind.START, str(error), host=host_state.host.name)
                )
            else:
                self._requeue(submission, host_state)
            return
        fields = submit_fields(
            submission,
            host_state.host,
            info,
            route=route,
            device_environ=host_state.environment(submission.devices),
            folder=folder,
            grace=self.timing.grace,
        )
        link.send_request(
            "submit", {"job": fields}, lambda request: self._on_answer(submission, request)
        )
        if not spec.detached:
            forward_output(self._output, link, submission)

    def _requeue(self, submission: Submission, host_state: HostState) -> None:
        """Queue a job again whose host has dropped before the job was sent to it."""
        with self._changed:
            host_state.release(submission.job.id)
            submission.host, submission.devices = None, ()
            self._queue[submission.job.id] = submission
        self._assign_waiting()

    def _on_answer(self, submission: Submission, request: Request) -> None:
        if request.error is None:
            # the private bytes are not needed any more
            with self._changed:
                submission.confirmed = True
                submission.spec = attrs.evolve(submission.spec, private=None)
                self._changed.notify_all()
            return
        kind = ReasonKind.START
        if isinstance(request.error, BackendUnavailableError):
            kind = ReasonKind.NODE_LOST
        self._end(submission, failed(kind, str(request.error), host=submission.host))

    # -- callbacks of links and leases

    def _on_link_change(self, link: AgentLink) -> None:
        if link.is_up:
            self.host_states[link.host.name].on_connected()
        with self._changed:
            self._changed.notify_all()
        self._assign_waiting()

    def _on_attached(self, link: AgentLink, records: list[Message]) -> None:
        for record in records:
            self._on_record(link, record)
        known = {record["id"] for record in records}
        with self._changed:
            missing = [
                submission
                for submission in self._submissions.values()
                if submission.host == link.host.name
                and submission.confirmed
                and submission.job.id not in known
            ]
        message = "its host knows it no more: its agent there ended, or gave this program up"
        for submission in missing:
            self._end(submission, failed(ReasonKind.NODE_LOST, message, host=link.host.name))

    def _on_record(self, link: AgentLink, record: Message) -> None:
        job, status = read_record(record, self._backend, link.host.name)
        submission = self.submission(job.id)
        if submission is None:
            self.feed.publish(job, status)
            return
        # whether or not its answer has come: that may be repeated after a connection that dropped
        submission.confirmed = True
        submission.stream_port = record.get("stream_port")
        if not status.state.is_terminal and self._has_ended(submission.job.id):
            # its lease had expired, and its host is connected again
            link.notify("kill", job=submission.job.id)
        elif status.state.is_terminal:
            self._end(submission, status)
        else:
            self.feed.publish(submission.job, status)

    def _on_lease_expired(self, name: str, seconds: float) -> None:
        """End the jobs of a host whose lease expired; its agent has killed them by then."""
        host_state = self.host_states[name]
        why = (
            f"host {name} was silent for {seconds:.1f} s, longer than its lease of {self.lease:g} s"
        )
        log.warning("fiber: %s", why)
        with self._changed:
            submissions = [one for one in self._submissions.values() if one.host == name]
        for submission in submissions:
            self._end(submission, failed(ReasonKind.LEASE, why, host=name))
        host_state.link.expire(why)

    def _has_ended(self, job_id: str) -> bool:
        status = self.feed.status(job_id)
        return status is None or status.state.is_terminal

    def _end(self, submission: Submission, status: JobStatus) -> None:
        with self._changed:
            self._queue.pop(submission.job.id, None)
            if submission.host is not None:
                self.host_states[submission.host].release(submission.job.id)
            self.feed.publish(submission.job, status)
            if len(self._submissions) > _REMEMBERED:
                oldest = next(filter(self._has_ended, self._submissions), "")
                self._submissions.pop(oldest, None)
            self._changed.notify_all()
        self._assign_waiting()

    # -- ending jobs

    def request_end(self, submission: Submission, op: str, **fields: object) -> None:
        """Request ``terminate`` or ``kill`` of a job that was submitted here.

        Raises:
            BackendUnavailableError: its host is not connected; the request is sent once it is.
        """
        with self._changed:
            if submission.host is None:
                self._end_waiting(submission, _SIGNALS[op])
                return
            host_state = self.host_states[submission.host]
        link = host_state.link

        def send() -> None:
            link.send_request(op, {"job": submission.job.id, **fields})

        host_state.enqueue(send)
        self.host_states.wait_reconnected(host_state)

    def cancel_waiting(self, run_id: str) -> None:
        """End the queued jobs of a run."""
        with self._changed:
            waiting = [one for one in self._queue.values() if one.job.run_id == run_id]
        for submission in waiting:
            self._end_waiting(submission, 9)

    def _end_waiting(self, submission: Submission, number: int) -> None:
        self._end(submission, ended(-number, "it was ended before it had a host"))

    # -- end

    def close(self) -> None:
        """End the jobs of the run that are not detached, and all connections. Idempotent."""
        with self._changed:
            if self.is_closed:
                return
            self.is_closed = True
            self._changed.notify_all()
        with contextlib.ExitStack() as stack:
            # each also where one before it fails, or Ctrl-C cuts it short
            stack.callback(self.feed.close)
            stack.callback(self._output.close, 5.0)
            stack.callback(self.host_states.close, self.run_id)
            stack.callback(self._lease_monitor.close)
            if self.run_id is not None:
                self.cancel_waiting(self.run_id)


def forward_output(thread: CallbackThread, link: AgentLink, submission: Submission) -> None:
    """Follow a job's output from its beginning to its end, and write it with the job's prefix.

    Args:
        thread: writes to descriptors 1 and 2.
        link: the connection to the job's host, to which the job was submitted before.
        submission: the job.
    """
    prefix = f"[{submission.spec.name}] " if submission.spec.log_prefix else ""
    marks = [LinePrefix(prefix.encode("utf-8", "replace")) for _ in range(2)]

    def write(stream: int, data: bytes) -> None:
        # without a reader, output is dropped: jobs must not wait for it
        with contextlib.suppress(OSError):
            write_all(stream + 1, marks[stream].feed(data))
        link.notify("took", number=one.number, count=len(data))

    one = link.followers.add(
        submission.job.id, functools.partial(thread.put, write), lambda _: None
    )
    link.follow(one)


def query_all(
    scheduler: JobScheduler, op: str, **fields: object
) -> list[tuple[HostState, Message]]:
    """Send a request to all connected hosts; the answers.

    Raises:
        BackendUnavailableError: no host is connected, or none answers.
    """
    host_states = scheduler.wait_connected(every=True)
    asked = [(host_state, _query_in_order(host_state, op, fields)) for host_state in host_states]
    deadline = time.monotonic() + scheduler.timing.answer
    answers: list[tuple[HostState, Message]] = []
    failures: list[BackendError] = []
    for host_state, request in asked:
        if not request.done.wait(max(0.0, deadline - time.monotonic())):
            failures.append(host_state.link.unavailable())
        elif request.error is not None:
            failures.append(request.error)
        else:
            answers.append((host_state, request.answer))
    if not answers:
        raise failures[0]
    return answers


def _query_in_order(host_state: HostState, op: str, fields: dict[str, object]) -> Request:
    """Send a request after all that is queued for the host, such as submissions."""
    request = host_state.link.new_request(op, fields)
    host_state.enqueue(lambda: host_state.link.send(request))
    return request


def find_job(scheduler: JobScheduler, job: Job) -> tuple[HostState, Message]:
    """The host of a job and its agent's record of it.

    Raises:
        UnknownJobError: all hosts that may have it were asked, and none knows it.
        BackendUnavailableError: a host that may have it cannot be asked, and no other one knows it.
    """
    missing: BackendError | None = None
    unasked: BackendUnavailableError | None = None
    for host_state in _candidates(scheduler, job):
        try:
            answer = host_state.link.call("status", job=job.id)
        except UnknownJobError as error:
            missing = error
        except BackendUnavailableError as error:
            unasked = error
        else:
            record: Message = answer["job"]
            return host_state, record
    if unasked is not None and missing is None:
        raise unasked
    what = f"job {job.id} ({job.name})"
    if unasked is not None:
        msg = f"whether there is a {what} is not known, for {unasked}; no other ssh host has it"
        raise BackendUnavailableError(msg) from unasked
    msg = f"there is no {what} on the ssh hosts {scheduler.host_states}"
    raise UnknownJobError(msg) from missing


def _candidates(scheduler: JobScheduler, job: Job) -> Sequence[HostState]:
    """The job's host where it is known, otherwise all of them, with those that cannot be asked."""
    scheduler.start()
    submission = scheduler.submission(job.id)
    name = submission.host if submission is not None else job.data.get("host")
    if isinstance(name, str) and name in scheduler.host_states:
        return [scheduler.host_states[name]]
    scheduler.wait_connected(every=True)
    return list(scheduler.host_states)
