"""Supervisor of one remote job: runs its processes, and ends them when its parent is lost.

Processes are forked first and wait at the :class:`StartBarrier` until the parent has accepted the
job. When the platform takes the job's place away (SIGTERM), a worker of a pool need not end at
once: its parent gives it no new task and has it exit after those it has begun. :class:`Drain`
decides when it gets SIGTERM nevertheless. A :class:`JobFolder` is the job's own, for its time on its host.

:func:`main` reads the configuration and serves; a forked child unwinds to it. Apart from ``__main__``, so that
it can be imported.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fiber._agent import instructions
from fiber._agent.instructions import PRELOAD
from fiber._agent.job import (
    GRACE_VARIABLE,
    REACH_VARIABLE,
    STREAMS_PREFIX,
    SupervisorConfig,
    supervisor_ident,
)
from fiber._agent.job.parent_link import (
    Acknowledged,
    Connected,
    Lost,
    OutputForwarder,
    ParentEvent,
    ParentLink,
    Received,
    Refused,
    open_sinks,
)
from fiber._agent.lease import LeaseTable
from fiber._agent.supervisor import kernel, messages, orphans
from fiber._agent.supervisor.cgroup import JobConfiner
from fiber._agent.supervisor.child import InChild, become, environment
from fiber._agent.supervisor.jobs import JobEntry, JobTable
from fiber._agent.supervisor.journal import Journal
from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.preload import preload_fibers
from fiber._agent.supervisor.runner import JobRunner, Launch
from fiber._base import entry_points, values
from fiber._base.interpreter import working_folder
from fiber._base.threads import Loop, drained, wake
from fiber._tunnel import is_route
from fiber._wire.descriptors import (
    Descriptors,
    fill_standard_descriptors,
    raise_limit_to_hard,
)
from fiber._wire.handshake import Hello
from fiber._wire.link import Link
from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Claim, liveness_of, remove_claimed
from fiber.backend_parts.private import read_private
from fiber.exceptions import FiberError, StartError
from fiber.model import JobSpec, JobStatus, ResourceRequest
from fiber.model.timing import Timing

if TYPE_CHECKING:
    from fiber._tunnel.server import TunnelServer

_NAME = re.compile(r"fiber-[0-9a-f]{8}-\w+")


class JobFolder:
    """A private folder for the job of this process, which is its supervisor.

    Args:
        run_id: the job's run.
    """

    def __init__(self, run_id: str) -> None:
        #: path of the folder
        self.path = tempfile.mkdtemp(prefix=f"fiber-{run_id}-")
        self._claim = Claim(self.path)

    @property
    def descriptor(self) -> int:
        """Descriptor that holds the claim; processes of the job close theirs."""
        return self._claim.descriptor

    def remove(self) -> None:
        """Remove the folder and give up the claim."""
        remove_claimed(self.path)
        self._claim.release()


def sweep() -> list[str]:
    """Remove folders of this user whose supervisors are proven to be dead; returns their paths."""
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return []
    ours = [entry.path for entry in entries if _NAME.fullmatch(entry.name) and _is_ours(entry)]
    return liveness.sweep(ours, liveness_of, _removed)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return (
            entry.is_dir(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        )
    except OSError:
        return False


def _removed(folder: str) -> bool:
    remove_claimed(folder)
    return not Path(folder).exists()


#: how the supervisor names :func:`run_process`
ENTRY = "fiber._agent.job.server:run_process"
#: signals that a supervisor passes on to its processes, besides SIGTERM and SIGINT
FORWARDED_SIGNALS = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class StartBarrier:
    """Barrier at which forked processes wait until the parent has accepted their job."""

    #: the barrier of this job; set before the fork
    current: StartBarrier | None = None

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def open(self) -> None:
        """Release all processes that wait."""
        os.close(self.reader)
        # all who waited may have been killed meanwhile
        with contextlib.suppress(BrokenPipeError):
            os.write(self.writer, b"\0" * 4096)
        os.close(self.writer)

    def wait(self) -> bool:
        """Wait; False where the supervisor ended without opening the barrier."""
        os.close(self.writer)
        try:
            return bool(os.read(self.reader, 1))
        finally:
            os.close(self.reader)


def run_process(private: bytes, index: int) -> int:
    """Run process ``index`` of the job; returns its exit code."""
    barrier, StartBarrier.current = StartBarrier.current, None
    if barrier is not None and not barrier.wait():
        return 126
    code: int = entry_points.load_object(instructions.ENTRY)(private, index)
    return code


#: part of the platform's grace that is kept back for reports, ``Timing.grace_reserve`` at most
_PART = 0.25


class Drain:
    """Delay of the platform's SIGTERM on its way to the processes; pure, the clock is passed in.

    Args:
        grace: seconds from the platform's SIGTERM to its SIGKILL, for a job whose parent can have it
            exit; None where processes get SIGTERM at once.
        timing: durations of the run.
    """

    def __init__(self, grace: float | None, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._grace = grace
        #: when the platform ends the job, where it said so of this one
        self._ends_at: float | None = None
        self._due: float | None = None
        self._parent_due: float | None = None
        #: True from the platform's SIGTERM until processes get theirs
        self.is_on = False

    def request(self, now: float, *, parent_connected: bool) -> bool:
        """Note the platform's SIGTERM; True where processes are to get it now.

        Args:
            now: monotonic time.
            parent_connected: True where there is a connection.
        """
        left = self._grace if self._ends_at is None else max(0.0, self._ends_at - now)
        if left is None or self._due is not None:
            # a second request is a request not to wait
            self.is_on = False
            return True
        self.is_on = True
        self._due = self._before_end(now, left)
        self._parent_due = None if parent_connected else now + self._timing.parent_answer
        return False

    def limit(self, now: float, seconds: float) -> None:
        """Note that the platform ends this job in so many seconds, whatever it does with others."""
        self._ends_at = now + max(0.0, seconds)
        if self._due is not None:
            self._due = self._before_end(now, self._ends_at - now)

    def _before_end(self, now: float, left: float) -> float:
        return now + left - min(self._timing.grace_reserve, _PART * left)

    def on_parent_connected(self) -> None:
        """Note that the parent is connected and will get the status ``draining``."""
        self._parent_due = None

    @property
    def due(self) -> float | None:
        """Time at which processes are to get SIGTERM; None where none is pending."""
        if not self.is_on or self._due is None:
            return None
        return self._due if self._parent_due is None else min(self._due, self._parent_due)

    def is_due(self, now: float) -> bool:
        """True, once, when processes are to get SIGTERM."""
        if self.due is None or now < self.due:
            return False
        self.is_on = False
        return True


_PARENT = "parent"


class JobServer:
    """Supervisor of one job.

    Args:
        config: the configuration from the parent.
        tunnel: end of the tunnel in this job, where streams are opened into it.
        descriptor_limit: soft limit of open files that processes are to have.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        *,
        tunnel: TunnelServer | None = None,
        descriptor_limit: int | None = None,
    ) -> None:
        self._tunnel = tunnel
        own = config.instructions
        self._timing = own.timing
        #: seconds for which a parent that was never reached is dialled
        self._first_dial = max(self._timing.first_dial, config.lease)
        self._config = config
        self._ident = own.ident
        #: True where no process was started
        self.is_refused = False
        #: exit code of the first process, or minus its signal
        self.exit_code = 0
        self._loop = Loop()
        self._descriptors = Descriptors()
        self._descriptors.own(self._loop.fileno())
        host = platform.node()
        self._table = JobTable(host)
        sweep()
        # in place of the run's, which is on the parent's host
        self._folder = JobFolder(own.credentials.run_id)
        # closed in the processes of the job, which may outlive this one
        self._descriptors.own(self._folder.descriptor)
        self._directory = self._folder.path
        self._forwarder = OutputForwarder(self._wake_parent_link) if config.forward_output else None
        self._sinks = sinks = open_sinks(
            self._loop, self._descriptors, self._resume, self._forwarder, config.prefix.encode()
        )
        # never opened: the parent gets all statuses
        journal = Journal(self._directory, self._notice)
        self._runner = JobRunner(
            SupervisorOptions(
                run_id=own.credentials.run_id,
                run_directory=self._directory,
                master=None,
                host=host,
                keeps_logs=False,
                offers_channels=False,
                time_scale=own.time_scale,
            ),
            loop=self._loop,
            descriptors=self._descriptors,
            table=self._table,
            journal=lambda _: journal,
            sinks=lambda _: sinks,
            descriptor_limit=descriptor_limit,
            on_changed=self._on_changed,
            on_notice=self._notice,
            confiner=JobConfiner(enforce=config.enforce_limits),
        )
        self._start_barrier: StartBarrier | None = None
        self._drain = Drain(config.grace if config.drains else None, self._timing)
        self._leases: LeaseTable[str] = LeaseTable(
            lease=config.lease, silence=config.silence, timing=self._timing
        )
        next_output = (lambda: None) if self._forwarder is None else self._next_output
        self._parent_link = ParentLink(
            own.urls, self._connect, self._wake_loop, next_output, timing=self._timing
        )
        self._status: messages.StatusChanged | None = None
        self._connected = False
        self._was_connected = False
        self._finished = False
        self._acknowledged = False
        self._why_lost = "it did not answer"

    def serve(self) -> None:
        """Start the processes and supervise them until all have ended.

        Raises:
            InChild: in each forked child.
        """
        kernel.adopt_orphans()
        self._watch_signals()
        self._start_processes()
        # from here on no fork: the parent link opens sockets
        self._forward_signals()
        reader, self._wakeup = self._descriptors.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(self._wakeup, False)
        self._loop.on_readable(reader, lambda: self._handle_events(reader))
        if self._tunnel is not None:
            self._tunnel.serve(self._directory)
        self._parent_link.start()
        self._loop.call_later(self._timing.heartbeat, self._check_lease)
        self._loop.call_later(self._first_dial, self._check_first_connection)
        while not self._finished:
            self._loop.run_once()
        self._end()

    def leave_child(self) -> None:
        """In a forked child: close everything that is the supervisor's; its objects are kept."""
        signal.set_wakeup_fd(-1)
        self._descriptors.close_all()
        if self._tunnel is not None:
            self._tunnel.abandon()

    # -- output ---------------------------------------------------------------------------------

    def _wake_parent_link(self) -> None:
        self._parent_link.wake()

    def _update_forwarder(self) -> None:
        if self._forwarder is not None:
            self._forwarder.set_connected(self._connected)
            self._parent_link.wake()

    def _next_output(self) -> messages.Output | None:
        """Next piece of output for the parent; called on the parent link's thread."""
        assert self._forwarder is not None
        taken = self._forwarder.take()
        if self._forwarder.may_resume:
            self._wake_loop()
        return taken

    def _resume(self) -> None:
        if self._forwarder is None or not self._forwarder.is_full:
            self._runner.resume_output()

    # -- processes ------------------------------------------------------------------------------

    def _start_processes(self) -> None:
        config = self._config
        own = config.instructions
        for_processes = values.evolve(own, directory=self._directory, dial_timeout=self._first_dial)
        spec = JobSpec(
            run_id=own.credentials.run_id,
            name=config.name,
            argv=(),
            entry=ENTRY,
            private=for_processes.encode(),
            env=config.env,
            resources=ResourceRequest(cpu=config.cpu, memory=config.memory),
            processes=own.processes,
        )
        self._start_barrier = StartBarrier.current = StartBarrier()
        self._table.add(self._ident, owner=None, processes=own.processes)
        launch = Launch(
            job_id=self._ident,
            spec=spec,
            environ=environment(os.environ, spec),
            cwd=working_folder() or "/",
            owner=None,
            answer=self._on_started,
        )
        self._runner.start(launch)
        StartBarrier.current = None

    def _on_started(self, refusal: str, warnings: tuple[str, ...]) -> None:
        if refusal:
            self._notice(refusal)
            self.is_refused = self._finished = True
        for warning in warnings:
            self._notice(f"{self._config.name}: {warning}")

    def _on_changed(self, entry: JobEntry) -> None:
        status = self._table.status(entry.id)
        if not status.state.is_terminal:
            self._send_status(status)
            return
        self._status = messages.StatusChanged(job_id=entry.id, status=status)
        self.exit_code = status.exit_code or 0
        # once the runner is done with it
        self._loop.call_later(0, self._report_end)

    def _send_status(self, status: JobStatus) -> None:
        status = values.evolve(status, draining=self._drain.is_on)
        self._status = messages.StatusChanged(job_id=self._ident, status=status)
        if self._connected:
            self._parent_link.send(self._status)

    def _terminate(self, grace: float) -> None:
        entry = self._table.get(self._ident)
        if entry is not None:
            self._runner.terminate(entry, grace)

    def _notice(self, words: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))

    # -- signals --------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        def on_signals(signums: bytes) -> None:
            for signum in signums:
                if signum == signal.SIGTERM:
                    self._on_sigterm()
                elif signum != signal.SIGCHLD:
                    self._signal(None, signum, is_asked=False)
            self._runner.reap()

        watched = signal.SIGCHLD, signal.SIGTERM, signal.SIGINT
        for end in self._loop.on_signals(watched, on_signals):
            self._descriptors.own(end)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _forward_signals(self) -> None:
        # after the fork, so that processes have them as the system has
        for signum in FORWARDED_SIGNALS:
            signal.signal(signum, lambda *_: None)
        # the end of the terminal or connection that started this is no end of its work
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_sigterm(self) -> None:
        """The platform takes the job's place away."""
        if self._drain.request(self._loop.now(), parent_connected=self._connected):
            self._signal(None, signal.SIGTERM, is_asked=False)
        else:
            if self._status is not None:
                self._send_status(self._status.status)
            self._await_drain()

    def _await_drain(self) -> None:
        now = self._loop.now()
        if self._drain.is_due(now):
            self._signal(None, signal.SIGTERM, is_asked=False)
        elif self._drain.due is not None:
            self._loop.call_later(self._drain.due - now, self._await_drain)

    def _signal(
        self, index: int | None, signum: int, *, group: bool = False, is_asked: bool = True
    ) -> None:
        entry = self._table.get(self._ident)
        if entry is not None:
            self._runner.signal(entry, index, signum, group=group, is_asked=is_asked)

    # -- the parent -----------------------------------------------------------------------------

    def _connect(self, url: str) -> Link:
        own = self._config.instructions
        hello = Hello.mine(supervisor_ident(own.ident))
        return Link(url, own.credentials, hello, max_frame=own.max_frame, timing=own.timing)

    def _wake_loop(self) -> None:
        wake(self._wakeup)

    def _handle_events(self, reader: int) -> None:
        drained(reader)
        for event in self._parent_link.take_events():
            self._handle_event(event)
        if self._forwarder is not None and self._forwarder.may_resume:
            self._forwarder.resume()
            self._runner.resume_output()

    def _handle_event(self, event: ParentEvent) -> None:
        now = time.monotonic()
        if isinstance(event, Connected):
            self._connected = self._was_connected = True
            self._update_forwarder()
            self._leases.connected(_PARENT, now)
            self._drain.on_parent_connected()
            if self._start_barrier is not None:
                self._start_barrier.open()
                self._start_barrier = None
            self._parent_link.send(messages.Hello(pid=os.getpid()))
            if self._status is not None:
                if self._status.status.state.is_terminal:
                    self._parent_link.send_acknowledged(self._status)
                else:
                    self._parent_link.send(self._status)
        elif isinstance(event, Lost):
            self._connected = False
            self._update_forwarder()
            self._why_lost = event.why
            self._leases.disconnected(_PARENT, now)
        elif isinstance(event, Refused):
            # the parent knows why: words are for a log of the job's own, not for its terminal
            self._refused(event.why if self._forwarder is not None else "")
        elif isinstance(event, Acknowledged):
            self._acknowledged = self._finished = True
        else:
            self._leases.renew(_PARENT, now)
            self._execute(event)

    def _execute(self, event: Received) -> None:
        message = event.message
        if isinstance(message, messages.Signal):
            self._signal(message.process, message.signum, group=message.group)
        elif isinstance(message, messages.Terminate):
            self._terminate(message.grace)
        elif isinstance(message, messages.Kill):
            self._signal(None, signal.SIGKILL, group=True)
        elif isinstance(message, messages.SecondsLeft) and self._config.drains:
            self._drain.limit(self._loop.now(), message.seconds)
            self._await_drain()

    def _refused(self, why: str) -> None:
        if self._start_barrier is not None:
            self.is_refused = True
        if why:
            self._notice(f"{self._config.name} is ended: {why}")
        self._leases.drop(_PARENT)
        self._terminate(0.0 if self._start_barrier is not None else self._timing.lease_grace)

    def _check_first_connection(self) -> None:
        if not self._was_connected and not self._finished:
            why = "" if self._tunnel is None else self._tunnel.missing()
            if why:
                # addresses of this side of the tunnel would send people to look for a port
                self._refused(f"cannot reach the parent: {why}")
                return
            urls = ", ".join(self._config.instructions.urls)
            self._refused(f"cannot reach the parent at {urls}: {self._why_lost}")

    def _check_lease(self) -> None:
        self._loop.call_later(self._timing.heartbeat, self._check_lease)
        for expired in self._leases.expire(time.monotonic()):
            what = "the connection to" if expired.disconnected else "nothing was heard of"
            since = "gone" if expired.disconnected else "silent"
            self._notice(
                f"{self._config.name} is ended: {what} its parent"
                f"{' is ' + since if expired.disconnected else ''} for {expired.silent:.1f} s"
            )
            self._terminate(self._timing.lease_grace)

    # -- the end --------------------------------------------------------------------------------

    def _report_end(self) -> None:
        """All processes have ended: end their descendants, then report to the parent."""
        orphans.end_descendants(self._timing.kill)
        for sink in self._sinks:
            sink.drain(self._timing.flush)
        if self._connected and self._status is not None:
            self._parent_link.send_acknowledged(self._status)
        elif _PARENT not in self._leases:
            # there is no parent any more
            self._finished = True
            return
        # where it does not arrive, the engine still reports our end
        self._loop.call_later(self._timing.report, self._finish)

    def _finish(self) -> None:
        self._finished = True

    def _end(self) -> None:
        self._parent_link.close()
        if self._tunnel is not None:
            self._tunnel.close()
        self._runner.close()
        for sink in self._sinks:
            sink.drain(self._timing.flush)
        self._folder.remove()


#: exit code of a job that never came to do anything
REFUSED = 126
#: what the system calls this process
_TITLE = "fiber-job"
# imported before the fork, for all processes; it opens nothing
_TRANSPORT = ("fiber._wire.nng",)


def main() -> int:
    """Run the supervisor; returns the exit code, for engines that see nothing else."""
    fill_standard_descriptors()
    try:
        config = SupervisorConfig.decode(read_private()).with_grace(
            os.environ.pop(GRACE_VARIABLE, "")
        )
        config, tunnel = choose_route(config, os.environ.pop(REACH_VARIABLE, ""))
    except FiberError as error:
        return refuse(str(error))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return refuse(f"the instructions of this job make no sense to this fiber: {error!r}")
    kernel.set_title(_TITLE)
    limit = raise_limit_to_hard()
    unix = config.instructions.urls[0].startswith("unix:")
    missing = preload_fibers(() if unix else _TRANSPORT)
    if missing:
        # no connection is ever made without them, however often one is tried
        return refuse(
            f"{sys.executable} cannot connect to the parent: {'; '.join(missing.values())}"
        )
    preload_fibers(PRELOAD)
    server = JobServer(config, tunnel=tunnel, descriptor_limit=limit)
    try:
        server.serve()
    except InChild as child:
        plan = child.plan
        server.leave_child()
    else:
        return _code(server)
    become(plan)


def choose_route(
    config: SupervisorConfig, reach: str
) -> tuple[SupervisorConfig, TunnelServer | None]:
    """Configuration with the addresses to dial, and the tunnel's end in this job, if there is one.

    Args:
        config: the configuration as the parent wrote it.
        reach: value of :data:`~fiber._agent.job.REACH_VARIABLE`, from the backend.

    Raises:
        StartError: the parent cannot be dialled, and the backend names no other way.
        TransportError: the address for streams cannot be bound.
    """
    instructions = config.instructions
    if reach.startswith(STREAMS_PREFIX):
        from fiber._tunnel.server import TunnelServer

        tunnel = TunnelServer(
            reach.removeprefix(STREAMS_PREFIX),
            credentials=instructions.credentials,
            ident=instructions.ident,
            patience=config.lease,
            timing=instructions.timing,
        )
        return config.via_tunnel(tunnel.resolve), tunnel
    if all(is_route(url) for url in instructions.urls):
        msg = (
            f"the parent cannot be dialled, and the backend does not say by {REACH_VARIABLE} where it opens "
            "streams into this job"
        )
        raise StartError(msg)
    return config.via_address(reach), None


def refuse(words: str) -> int:
    """Write to stderr why nothing was started; returns the exit code for that."""
    with contextlib.suppress(OSError):
        os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))
    return REFUSED


def _code(server: JobServer) -> int:
    if server.is_refused:
        return REFUSED
    code = server.exit_code
    return 128 - code if code < 0 else code
