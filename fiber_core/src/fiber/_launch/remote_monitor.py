"""Monitor of remote jobs in their parent: takes reports, keeps leases, prints their output.

The other end is the job's supervisor, :mod:`fiber._agent.job.server`. Apart from ``launcher``, so
that programs whose jobs are forked on this host do not import it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._agent.job import MODULE, SupervisorConfig, supervisor_ident
from fiber._agent.lease import Expired, LeaseTable
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base import values
from fiber._launch import status_merge
from fiber._launch.code import CodeServer
from fiber._launch.preparation import public_and_private
from fiber._launch.submit_proxy import SubmitProxy
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.backend_parts.standard_streams import write_all
from fiber.exceptions import FiberError, WireError
from fiber.model import JobState, JobStatus, Reason, ReasonKind

if TYPE_CHECKING:
    from fiber._agent.instructions import Instructions
    from fiber._base.threads import Timer
    from fiber._launch.child import Child
    from fiber._launch.context import LaunchContext
    from fiber._wire.endpoint import Peer
    from fiber._wire.frames import Message
    from fiber.model import Job, JobSpec

__all__ = ["OutputPrinter"]

#: bytes that wait for a terminal that takes none, before the first of them are dropped
_MAX_PENDING = 1 << 24


class OutputPrinter:
    """Writes to this process's stdout and stderr on a thread, so that no caller waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        # pieces that were queued, and those of them that are written or dropped
        self._written = self._done = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def write(self, stream: int, data: bytes) -> None:
        """Queue bytes.

        Args:
            stream: 1 or 2.
            data: whole lines, or the beginning of one.
        """
        if stream not in {1, 2} or not data:
            return
        with self._changed:
            self._pieces.append((stream, data))
            self._written += 1
            self._size += len(data)
            while self._size > _MAX_PENDING and len(self._pieces) > 1:
                self._size -= len(self._pieces.popleft()[1])
                self._done += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="fiber-output-printer", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout: float) -> None:
        """Wait until the bytes queued so far are written, ``timeout`` seconds at most."""
        with self._changed:
            number = self._written
            self._changed.wait_for(lambda: self._done >= number, timeout)

    def close(self, *, timeout: float = 5.0) -> None:
        """Write the queued bytes and end the thread, in ``timeout`` seconds at most. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pieces and not self._closed:
                    self._changed.wait()
                if not self._pieces:
                    return
                stream, data = self._pieces.popleft()
                self._size -= len(data)
            # its reader may be gone: the bytes are dropped
            with contextlib.suppress(OSError):
                write_all(stream, data)
            with self._changed:
                self._done += 1
                self._changed.notify_all()


log = logging.getLogger("fiber")

#: interpreter on hosts for which no other is configured
PYTHON = "python3"
#: last lines of a log that are quoted when a job did not start
_TAIL = 20


@values.define(eq=False)
class _RemoteJob:
    """State of one remote job."""

    child: Child
    peer: Peer | None = None
    #: True once its supervisor has connected
    has_connected: bool = False
    reported: JobStatus | None = None
    platform: JobStatus | None = None
    #: the last status of the platform that says why it takes the job's place away, or took it
    why: JobStatus | None = None
    #: timer while a report is kept back until the platform says why a signal ended processes
    reason_timer: Timer | None = None
    #: processes whose end was told
    reported_ends: set[int] = values.field(factory=set)
    sent_signals: set[int] = values.field(factory=set)
    #: signals that could not be sent: no connection
    unsent: list[messages.Signal] = values.field(factory=list)
    #: seconds that the platform said it has left when it took its place away, and when they end
    seconds_left: float | None = None
    ends_at: float = 0.0
    #: timer of the last report or of a kill that is to be confirmed
    timer: Timer | None = None


class RemoteJobMonitor:
    """Monitor of the remote children of one process; all methods are thread-safe.

    Args:
        runtime: runtime of this process.
        on_status: called with a child and its status, without a lock held.
    """

    def __init__(
        self, runtime: LaunchContext, on_status: Callable[[Child, JobStatus], None]
    ) -> None:
        self._runtime = runtime
        self._timing = runtime.timing
        self._on_status = on_status
        self._lock = threading.RLock()
        self._jobs: dict[str, _RemoteJob] = {}
        lease = runtime.lease
        silence = max(lease, self._timing.local_silence) if runtime.info.near else lease
        self._leases: LeaseTable[str] = LeaseTable(
            lease=lease, silence=silence, timing=self._timing
        )
        self._timer: Timer | None = None
        #: answers queries for modules; None where jobs see this host's files
        self.code_server = None if runtime.info.capabilities.same_host else CodeServer()
        # submits the jobs of jobs that cannot reach the platform themselves
        self._submit_proxy = None if self.code_server is None else SubmitProxy(runtime)
        self._printer = OutputPrinter()
        runtime.endpoint.on_refused = self._on_refused

    # -- children -------------------------------------------------------------------------------

    def with_supervisor(
        self, spec: JobSpec, instructions: Instructions, *, drains: bool = False
    ) -> JobSpec:
        """Spec of the same job that starts a supervisor as its program."""
        capabilities = self._runtime.info.capabilities
        resources = spec.resources
        local = self._runtime.info.near
        public, private = public_and_private(spec.env)
        config = SupervisorConfig(
            env=private,
            instructions=values.evolve(instructions, remote=not capabilities.same_host),
            name=spec.name,
            lease=self._runtime.lease,
            silence=None if local else self._runtime.lease,
            cpu=resources.cpu,
            memory=resources.memory,
            enforce_limits=not (capabilities.cpu_limit and capabilities.memory_limit),
            # on one host output is inherited
            forward_output=not (capabilities.output or capabilities.same_host),
            prefix=f"[{spec.name}] " if spec.log_prefix else "",
            drains=drains,
        )
        python = spec.argv[0] if capabilities.same_host else PYTHON
        return values.evolve(
            spec,
            argv=(python, *spec.argv[1:-1], MODULE),
            cwd=spec.cwd if capabilities.same_host else None,
            env=public,
            private=config.encode(),
            processes=1,
        )

    def expect(self, child: Child) -> None:
        """Note a job that is about to be submitted."""
        with self._lock:
            self._jobs[supervisor_ident(child.ident)] = _RemoteJob(child)

    def forget(self, child: Child) -> None:
        """Remove a job that has ended, or was never submitted."""
        ident = supervisor_ident(child.ident)
        with self._lock:
            remote = self._jobs.pop(ident, None)
            self._leases.drop(ident)
            for timer in () if remote is None else (remote.timer, remote.reason_timer):
                if timer is not None:
                    timer.cancel()
        if self._submit_proxy is not None:
            self._submit_proxy.ended(
                [child.ident, *(child.ident_of(i) for i in range(child.processes))]
            )

    def deliver_proxied(self, job: Job, status: JobStatus) -> bool:
        """Deliver a status to the child that submitted the job; False where no child did."""
        return self._submit_proxy is not None and self._submit_proxy.observed(job, status)

    def is_supervisor(self, ident: str) -> bool:
        """True for a supervisor's identity, also that of a job that was given up."""
        return ident in self._jobs or ident.endswith(".s")

    def payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Payload for a job's processes, complete for a host that does not see this one's files."""
        if self.code_server is None:
            return payload
        info = self._runtime.info
        config = payload["config"]
        backend = {
            "name": info.name,
            "aliases": info.aliases,
            "capabilities": info.capabilities,
            "lease": info.lease,
            "near": info.near,
        }
        return {
            **payload,
            "modules": self.code_server.names(),
            "config": values.evolve(config, settings=None),
            # apart: the plugin that has their class need not be installed on that host
            "settings": frames.joined(codec.dumps(config.settings)),
            "backend": backend,
            "takes_many": self._runtime.takes_many,
        }

    def settle_output(self) -> None:
        """Wait until the output of jobs is written, a bounded time."""
        self._printer.settle(self._timing.output)

    def close(self) -> None:
        """Write the remaining output, and stop answering queries."""
        self._printer.close()
        if self.code_server is not None:
            self.code_server.close()

    # -- messages of supervisors, on the handler thread --------------------------------------------

    def on_message(self, peer: Peer, message: Message) -> None:
        """Handle one message of a supervisor."""
        with self._lock:
            remote = self._jobs.get(peer.ident)
        if remote is None:
            # its job was given up: it is to end what it still has
            peer.send(Kind.ERROR, 0, message.id)
            return
        if remote.peer is not peer:
            self._on_connected(remote, peer)
        with self._lock:
            self._leases.renew(peer.ident, time.monotonic())
        decoder = Decoder()
        decoder.feed(bytes(message.body))
        for received in decoder.messages():
            self._handle(remote, peer, received)
        if message.kind is Kind.CALL:
            peer.send(Kind.REPLY, 0, message.id)

    def on_peer_lost(self, peer: Peer) -> None:
        """Note a lost connection; a supervisor may make another one."""
        with self._lock:
            remote = self._jobs.get(peer.ident)
            if remote is None or remote.peer is not peer:
                return
            remote.peer = None
            self._leases.disconnected(peer.ident, time.monotonic())
        if remote.platform is not None and remote.platform.state.is_terminal:
            self._end_by_platform(remote)

    def _on_connected(self, remote: _RemoteJob, peer: Peer) -> None:
        with self._lock:
            remote.peer, remote.has_connected = peer, True
            now = time.monotonic()
            self._leases.connected(peer.ident, now)
            if remote.platform is not None and remote.platform.state is JobState.SUSPENDED:
                self._leases.pause(peer.ident, True, now)
            unsent, remote.unsent = remote.unsent, []
            left = self._time_left(remote, now)
        if self._timer is None:
            self._timer = self._runtime.reactor.call_later(
                self._timing.heartbeat, self._check_leases
            )
        for message in unsent:
            self._send(remote, message)
        if left is not None:
            peer.send(Kind.CAST, 0, 0, [encode(left)])

    def _handle(self, remote: _RemoteJob, peer: Peer, report: object) -> None:
        if isinstance(report, messages.Ping):
            peer.send(Kind.CAST, 0, 0, [encode(messages.Pong())])
        elif isinstance(report, messages.StatusChanged):
            remote.child.note_report(report.status)
            if self._submit_proxy is not None:
                ended = (p.index for p in report.status.processes if p.state.is_terminal)
                self._submit_proxy.ended(remote.child.ident_of(index) for index in ended)
            with self._lock:
                remote.reported = report.status
                if self._awaits_reason(remote):
                    return
                status = self._merged(remote, report.status)
            self._on_status(remote.child, status)
        elif isinstance(report, messages.Output):
            self._printer.write(report.stream, report.data)
        elif not isinstance(report, messages.Hello):
            msg = f"a supervisor sent {type(report).__name__}, which is no message of its protocol"
            raise WireError(msg)

    # -- why a signal ended a process: a supervisor knows that it did, and its platform mostly why

    def _awaits_reason(self, remote: _RemoteJob) -> bool:
        """True where the last report is kept back, for a bounded time, until the platform says why."""
        if remote.reason_timer is not None:
            return True
        assert remote.reported is not None
        ended = remote.platform is not None and remote.platform.state.is_terminal
        strange = status_merge.unexplained(remote.reported, sent_signals=remote.sent_signals)
        if ended or remote.why is not None or strange <= remote.reported_ends:
            return False
        remote.reason_timer = self._runtime.reactor.call_later(
            self._timing.platform_reason, lambda: self._tell_unexplained(remote)
        )
        return True

    def _tell_unexplained(self, remote: _RemoteJob) -> None:
        with self._lock:
            if remote.reason_timer is None or remote.reported is None:
                return
            remote.reason_timer = None
            status = self._merged(remote, remote.reported)
        self._on_status(remote.child, status)

    def _merged(self, remote: _RemoteJob, reported: JobStatus) -> JobStatus:
        """A supervisor's report, with what the platform knows besides."""
        platform, status = remote.platform, reported
        if platform is not None and not status.state.is_terminal:
            status = status_merge.merge_running(status, platform)
        elif platform is not None:
            status = status_merge.with_host(status, platform.host)
        remote.reported_ends.update(p.index for p in reported.processes if p.state.is_terminal)
        return status_merge.explain(status, remote.why, sent_signals=remote.sent_signals)

    def _on_refused(self, ident: str, why: str) -> bool:
        with self._lock:
            remote = self._jobs.get(ident)
        if remote is None:
            return False
        remote.child.set_start_failure(why)
        return True

    # -- statuses of the platform, on the events thread -------------------------------------------

    def observed(self, child: Child, status: JobStatus) -> JobStatus | None:
        """Merge a platform's status; returns the child's new status, None for none yet."""
        with self._lock:
            remote = self._jobs.get(supervisor_ident(child.ident))
            if remote is None:
                return status
            remote.platform = status
            if status_merge.tells_why(status, remote.sent_signals):
                remote.why = status
            self._leases.pause(
                supervisor_ident(child.ident),
                status.state is JobState.SUSPENDED,
                time.monotonic(),
            )
            if not status.state.is_terminal:
                left = self._note_time_left(remote, status, time.monotonic())
                if left is not None and remote.peer is not None:
                    remote.peer.send(Kind.CAST, 0, 0, [encode(left)])
            if remote.reason_timer is not None and remote.reported is not None:
                if not status.state.is_terminal and remote.why is None:
                    return None
                remote.reason_timer.cancel()
                remote.reason_timer = None
                if remote.reported.state.is_terminal or not status.state.is_terminal:
                    return self._merged(remote, remote.reported)
            if not status.state.is_terminal:
                if remote.reported is None:
                    return status_merge.merge_running(None, status)
                return self._merged(remote, remote.reported)
            if remote.peer is not None:
                if status.reason == Reason(ReasonKind.NODE_LOST):
                    # the platform does not know; while the supervisor is connected the job lives
                    return None
                # its last report may still be on its way; a supervisor waits for the
                # acknowledgement, so one that has ended without it was killed, or cut off
                self._set_timer(
                    remote, self._timing.report_after_end, lambda: self._end_by_platform(remote)
                )
                return None
        return self._ending(remote)

    def _note_time_left(
        self, remote: _RemoteJob, status: JobStatus, now: float
    ) -> messages.SecondsLeft | None:
        """Note what a platform says; returns what its supervisor is to know, None for nothing new."""
        # the same number again comes with other news, and prolongs nothing
        if not status.draining or status.seconds_left in {None, remote.seconds_left}:
            return None
        assert status.seconds_left is not None
        remote.seconds_left, remote.ends_at = status.seconds_left, now + status.seconds_left
        return self._time_left(remote, now)

    def _time_left(self, remote: _RemoteJob, now: float) -> messages.SecondsLeft | None:
        if remote.seconds_left is None:
            return None
        return messages.SecondsLeft(max(0.0, remote.ends_at - now))

    def _end_by_platform(self, remote: _RemoteJob) -> None:
        with self._lock:
            if self._jobs.get(supervisor_ident(remote.child.ident)) is not remote:
                return
        self._on_status(remote.child, self._ending(remote))

    def _ending(self, remote: _RemoteJob) -> JobStatus:
        assert remote.platform is not None
        platform = status_merge.with_reason(remote.platform, remote.why)
        sent, reported = remote.sent_signals, remote.reported
        if reported is not None:
            reported = status_merge.explain(reported, remote.why, sent_signals=sent)
        status = status_merge.merge_ended(platform, reported, sent_signals=sent)
        if not remote.has_connected and not remote.sent_signals and status.state is JobState.FAILED:
            remote.child.set_start_failure(
                status_merge.diagnose(
                    status, self._tail(remote.child, status), image=remote.child.image
                )
            )
        return status

    def _tail(self, child: Child, status: JobStatus) -> tuple[str, ...]:
        tail = next((p.log_tail for p in status.processes if p.log_tail), ())
        if tail or child.job is None or not self._runtime.info.capabilities.logs:
            return tail
        try:
            return tuple(self._runtime.backend.logs(child.job, tail=_TAIL))
        except FiberError as error:
            log.debug("fiber: the log of %s cannot be had: %s", child.name, error)
            return ()

    # -- requests for a child ---------------------------------------------------------------

    def signal(self, child: Child, index: int | None, signum: int) -> bool:
        """Send a signal to one process, or all; False where its supervisor is not connected."""
        with self._lock:
            remote = self._jobs.get(supervisor_ident(child.ident))
            if remote is None:
                return True
            remote.sent_signals.add(int(signum))
        group = signum == signal.SIGKILL
        return self._send(remote, messages.Signal(0, child.ident, index, int(signum), group))

    def was_sent(self, child: Child, signum: int) -> bool:
        """True where the signal was sent to the child before, or the child has ended."""
        with self._lock:
            remote = self._jobs.get(supervisor_ident(child.ident))
            return remote is None or int(signum) in remote.sent_signals

    def kill(self, child: Child) -> bool:
        """SIGKILL to all processes; False where only the platform can do it."""
        if not self.signal(child, None, signal.SIGKILL):
            return False
        with self._lock:
            remote = self._jobs.get(supervisor_ident(child.ident))
            if remote is not None:
                self._set_timer(remote, self._timing.remote_kill, lambda: self._fence(remote))
        return True

    def _send(self, remote: _RemoteJob, message: messages.Signal) -> bool:
        with self._lock:
            peer = remote.peer
            if peer is None:
                remote.unsent.append(message)
                return False
        peer.send(Kind.CAST, 0, 0, [encode(message)])
        return True

    # -- leases ---------------------------------------------------------------------------------

    def has_lease(self, child: Child) -> bool:
        """True for a child whose supervisor has connected and is under a lease."""
        with self._lock:
            return supervisor_ident(child.ident) in self._leases

    def _check_leases(self) -> None:
        with self._lock:
            expired = self._leases.expire(time.monotonic())
            again = bool(self._jobs) and not self._runtime.closing
            self._timer = (
                self._runtime.reactor.call_later(self._timing.heartbeat, self._check_leases)
                if again
                else None
            )
            due = [(one, self._jobs[one.key]) for one in expired if one.key in self._jobs]
        for one, remote in due:
            self._give_up(one, remote)

    def _give_up(self, expired: Expired[str], remote: _RemoteJob) -> None:
        where = remote.child.host or "its host"
        how = "its connection was gone" if expired.disconnected else "nothing was heard of it"
        words = f"{how} for {expired.silent:.1f} s: {where} or the way there is lost"
        log.warning("fiber: %s is given up: %s", remote.child.name, words)

        def act() -> None:
            # kill first, so that its work is not done twice where that can be avoided
            self._kill_by_platform(remote)
            reason, host = Reason(ReasonKind.LEASE), remote.child.host
            self._on_status(
                remote.child, status_merge.lost(remote.reported, reason, host=host, words=words)
            )

        self._run_in_thread(act)

    def _fence(self, remote: _RemoteJob) -> None:
        self._run_in_thread(lambda: self._kill_by_platform(remote))

    def _kill_by_platform(self, remote: _RemoteJob) -> None:
        if remote.child.job is None:
            return
        try:
            self._runtime.backend.kill(remote.child.job)
        except FiberError as error:
            log.warning("fiber: %s cannot be ended for certain: %s", remote.child.name, error)

    def _run_in_thread(self, act: Callable[[], None]) -> None:
        # a platform may be slow, and the handler thread has other connections to serve
        threading.Thread(target=act, name="fiber-fence", daemon=True).start()

    def _set_timer(self, remote: _RemoteJob, delay: float, action: Callable[[], None]) -> None:
        if remote.timer is not None:
            remote.timer.cancel()
        remote.timer = self._runtime.reactor.call_later(delay, action)
