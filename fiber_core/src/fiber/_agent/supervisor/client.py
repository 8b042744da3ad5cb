"""Client of a supervisor: requests from any thread, and statuses of the jobs submitted through it.

:class:`Connection` is the transport (replies, signs of life, the end); :class:`SupervisorClient`
has a method for each request. When the supervisor is lost, the jobs that it supervised are killed
and reported as lost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.kernel import ProcessWatch
from fiber._agent.supervisor.messages import Attributes, Decoder, encode
from fiber._base import values
from fiber._base.interpreter import working_folder
from fiber.exceptions import (
    BackendUnavailableError,
    FiberError,
    ForkedError,
    ResourceError,
    SubmitError,
    WireError,
)
from fiber.model import Device, JobSpec, JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from fiber.model.timing import Timing

_READ = 1 << 18


class SupervisorGoneError(BackendUnavailableError):
    """The supervisor ended before it carried out a request; another one can be started."""


class _Pending:
    """Request without a reply so far."""

    __slots__ = ("error", "event", "on_reply", "reply", "request")

    def __init__(
        self, request: messages.Request, on_reply: Callable[[messages.Reply], None]
    ) -> None:
        self.event = threading.Event()
        self.request = request
        self.reply: messages.Reply | None = None
        self.error: FiberError | None = None
        self.on_reply = on_reply


class Connection:
    """Channel to a supervisor: requests from any thread, reading and signs of life on its own.

    Args:
        channel: connected to the supervisor; closed at the end.
        on_message: called on the thread with messages that are no replies.
        on_lost: called on the thread when the supervisor is lost, before anything else follows:
            the time to kill what it supervised; with True where it was importing modules.
        on_end: called on the thread as the last thing, with the reason; "" where the supervisor
            ended because there was nothing left to do or on request.
        process: the supervisor, where this process started it: it is killed when it is silent.
        silence: seconds without a word after which it is given up.
        name: of the thread.
        timing: durations of the run.
    """

    def __init__(
        self,
        channel: socket.socket,
        *,
        on_message: Callable[[object], None],
        on_lost: Callable[[bool], None],
        on_end: Callable[[str], None],
        process: subprocess.Popen[bytes] | None,
        silence: float,
        name: str,
        timing: Timing,
    ) -> None:
        self._timing = timing
        self._channel = channel
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_end = on_end
        self._process = process
        self._silence = silence
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._ended: str | None = None
        self._exiting = False
        self._closing = False
        self._hung_up = False
        self._has_greeted = process is None
        self._last_seen = time.monotonic()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def last_seen(self) -> float:
        """Time of the supervisor's last message, on the monotonic clock."""
        return self._last_seen

    @property
    def has_ended(self) -> bool:
        """True once no request can be carried out any more."""
        return self._ended is not None or self._exiting

    @property
    def is_running(self) -> bool:
        """True while the thread may still call back."""
        return self._thread.is_alive()

    @property
    def is_foreign(self) -> bool:
        """True in a process that the user's own fork made, where the thread does not exist."""
        return os.getpid() != self._owner

    def ask(
        self,
        make: Callable[[int], messages.Request],
        *,
        on_reply: Callable[[messages.Reply], None] = lambda _: None,
    ) -> messages.Reply:
        """Send a request and wait for its reply.

        Args:
            make: makes the request from its number.
            on_reply: called on the thread with the reply, before any message that follows it.

        Raises:
            SupervisorGoneError: the supervisor ended first.
            ForkedError: this is not the process that made the connection.
        """
        if self.is_foreign:
            msg = (
                f"process {os.getpid()} was forked from {self._owner}, whose supervisor it cannot "
                "use; start it with fiber.Process"
            )
            raise ForkedError(msg)
        number = next(self._numbers)
        pending = _Pending(make(number), on_reply)
        frame = encode(pending.request)
        with self._lock:
            if self.has_ended:
                raise SupervisorGoneError(self._ended or "the supervisor has ended")
            self._pending[number] = pending
        try:
            with self._sending:
                self._channel.sendall(frame)
                if isinstance(pending.request, messages.Shutdown) and not self._is_judged():
                    # it may import for ever, and sees this meanwhile
                    self._hung_up = self._exiting = True
                    self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            # the thread finds out why, and fails this request with the rest
            self._wake()
        pending.event.wait()
        if pending.error is not None:
            raise pending.error
        assert pending.reply is not None
        return pending.reply

    def stop_accepting(self) -> None:
        """Refuse further requests: the supervisor has announced that it ends."""
        with self._lock:
            self._exiting = True

    def close(self) -> None:
        """Stop the thread, and wait for a supervisor of ours to end. Idempotent."""
        with self._lock:
            self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        with self._lock:
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"w")

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        watch = self._watch_process()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._channel, selectors.EVENT_READ)
                selector.register(self._wake_reader, selectors.EVENT_READ)
                if watch is not None:
                    selector.register(watch, selectors.EVENT_READ)
                reason = self._listen(selector, watch)
        finally:
            if watch is not None:
                watch.close()
        self._finish(reason)

    def _watch_process(self) -> ProcessWatch | None:
        if self._process is None:
            return None
        try:
            return ProcessWatch(self._process.pid)
        except OSError:
            # the end of the channel is noticed too, unless another process holds the other end
            return None

    def _listen(self, selector: selectors.BaseSelector, watch: ProcessWatch | None) -> str:
        """Read until the end; returns the reason."""
        decoder = Decoder()
        heartbeat = self._timing.heartbeat
        turned = time.monotonic()
        beat = turned + heartbeat
        while True:
            ready = {key.fd for key, _ in selector.select(max(0.0, beat - time.monotonic()))}
            now = time.monotonic()
            if now - turned > heartbeat + self._silence / 2:
                # this process was stopped or starved itself: messages that the supervisor sent
                # meanwhile are still in the socket
                self._last_seen = now
            turned = now
            try:
                is_open = self._receive(decoder)
            except WireError as error:
                return f"it speaks nonsense: {error}"
            except OSError:
                # it ended before it had read all
                is_open = False
            ended = watch is not None and watch.fileno() in ready
            if ended or not is_open:
                return "" if self._exiting or self._closing else "it ended without a word"
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                if self._closing and not self._hung_up:
                    return ""
            silent = now - self._last_seen
            if silent > (self._silence if self._is_judged() else self._import_patience()):
                if self._hung_up and self._process is not None:
                    # an import does not let it end
                    self._process.kill()
                    return ""
                return f"it has been silent for {silent:.1f} s"
            if now >= beat:
                beat = now + heartbeat
                self._ping()

    def _receive(self, decoder: Decoder) -> bool:
        while True:
            try:
                data = self._channel.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._last_seen = time.monotonic()
            decoder.feed(data)
            for message in decoder.messages():
                self._handle(message)

    def _handle(self, message: object) -> None:
        if isinstance(message, messages.REPLIES):
            with self._lock:
                pending = self._pending.pop(message.number, None)
            if pending is not None:
                if isinstance(pending.request, messages.Shutdown):
                    self.stop_accepting()
                pending.on_reply(message)
                pending.reply = message
                pending.event.set()
            return
        if isinstance(message, messages.Hello):
            self._has_greeted = True
        elif isinstance(message, messages.Exiting):
            self.stop_accepting()
        self._on_message(message)

    def _is_judged(self) -> bool:
        # imports run user code, for as long as they like
        with self._lock:
            return self._has_greeted and not any(
                isinstance(pending.request, messages.Preload) for pending in self._pending.values()
            )

    def _import_patience(self) -> float:
        with self._lock:
            ends = any(isinstance(p.request, messages.Shutdown) for p in self._pending.values())
        return self._timing.supervisor_exit if ends else self._timing.supervisor_start

    def _ping(self) -> None:
        # never block here: this thread detects a supervisor that does not read
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._channel.send(encode(messages.Ping()), socket.MSG_DONTWAIT)
            finally:
                self._sending.release()

    def _finish(self, reason: str) -> None:
        words = f"the supervisor of this run's jobs is lost: {reason}" if reason else ""
        if reason:
            # a send that blocks returns
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
            if self._process is not None:
                self._process.kill()
            self._on_lost(not self._is_judged())
        with self._lock:
            self._ended = words
            pending = list(self._pending.values())
            self._pending.clear()
            os.close(self._wake_writer)
            os.close(self._wake_reader)
            self._wake_writer = -1
        self._channel.close()
        if self._process is not None:
            _await(self._process, self._timing.supervisor_exit)
        self._on_end(words)
        for request in pending:
            request.error = SupervisorGoneError(words or "the supervisor has ended")
            request.event.set()


def _await(process: subprocess.Popen[bytes], timeout: float) -> None:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def accepted_status(pids: Sequence[int]) -> JobStatus:
    """Status of a job from its acceptance until its first status comes."""
    return JobStatus(
        state=JobState.PENDING,
        processes=tuple(
            ProcessStatus(index=index, state=JobState.RUNNING, pid=pid)
            for index, pid in enumerate(pids)
        ),
    )


def kill_groups(status: JobStatus) -> None:
    """SIGKILL to the process groups of a job whose supervisor is lost."""
    for process in status.processes:
        if process.pid is not None and not process.state.is_terminal:
            for send in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    send(process.pid, signal.SIGKILL)


def lost_status(status: JobStatus, message: str) -> JobStatus:
    """Final status of a job whose supervisor is lost."""
    reason = Reason(ReasonKind.NODE_LOST)
    processes = tuple(
        process
        if process.state.is_terminal
        else values.evolve(
            process,
            state=JobState.FAILED,
            reason=reason,
            exit_code=-signal.SIGKILL,
            message=message,
        )
        for process in status.processes
    )
    return values.evolve(
        status,
        state=JobState.FAILED,
        reason=reason,
        exit_code=processes[0].exit_code if processes else -signal.SIGKILL,
        message=message,
        processes=processes,
    )


class UnknownDevicesError(ResourceError):
    """A job asks for kinds of devices that the supervisor does not know; see ``offer``."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds."""
        return tuple(str(self).split())


class SupervisorClient:
    """Client of one supervisor; thread-safe.

    Args:
        channel: connected to it; closed by :meth:`close`.
        on_status: called on the client's thread with each change of a job that was submitted here.
        on_notice: called on that thread with sentences for people.
        on_end: called on that thread once, when no more will come, with the reason; "" where the
            supervisor ended because there was nothing left to do or on request.
        on_failures: called on that thread with modules that it could not import, and why.
        on_stuck: called on that thread first where it was lost while it imported a module, with its name.
        on_retired: called on that thread once it takes no more jobs, with modules whose import is the reason, if any.
        process: the supervisor, where this process started it: it is killed when it is silent.
        silence: seconds without a word after which it is given up, and its jobs with it; None for
            those after which any peer on this host is.
        name: of the thread.
        timing: durations of the run.
    """

    def __init__(
        self,
        channel: socket.socket,
        *,
        on_status: Callable[[str, JobStatus], None],
        on_notice: Callable[[str], None],
        on_end: Callable[[str], None],
        on_failures: Callable[[Mapping[str, str]], None] = lambda _: None,
        on_stuck: Callable[[str], None] = lambda _: None,
        on_retired: Callable[[tuple[str, ...]], None] = lambda _: None,
        process: subprocess.Popen[bytes] | None = None,
        silence: float | None = None,
        name: str = "fiber-jobs",
        timing: Timing = Timing(),
    ) -> None:
        self._on_status = on_status
        self._on_notice = on_notice
        self._on_end = on_end
        self._on_failures = on_failures
        self._on_stuck = on_stuck
        self._on_retired = on_retired
        self._owns = process is not None
        self._importing = ""
        self._is_retired = False
        self._is_detached = False
        self._living: dict[str, JobStatus] = {}
        self._connection = Connection(
            channel,
            on_message=self._handle,
            on_lost=self._on_lost,
            on_end=self._on_connection_end,
            process=process,
            silence=timing.local_silence if silence is None else silence,
            name=name,
            timing=timing,
        )

    @property
    def last_seen(self) -> float:
        """Time of the supervisor's last message, on the monotonic clock."""
        return self._connection.last_seen

    @property
    def has_ended(self) -> bool:
        """True once no request can be carried out any more."""
        return self._connection.has_ended

    @property
    def takes_jobs(self) -> bool:
        """False once it has ended or is about to: another supervisor is to be started for more jobs."""
        return not (self.has_ended or self._is_retired)

    @property
    def is_retired(self) -> bool:
        """True where imports are why it takes no more jobs."""
        return self._is_retired

    @property
    def is_running(self) -> bool:
        """True while its thread may still call back."""
        return self._connection.is_running

    def submit(
        self,
        spec: JobSpec,
        *,
        environ: Mapping[str, str],
        cwd: str,
        on_accepted: Callable[[messages.Accepted], None],
    ) -> messages.Accepted:
        """Have a job started, with this process's umask, priority, CPUs and limits.

        Args:
            spec: the job.
            environ: the environment it inherits.
            cwd: its working directory where the spec names none.
            on_accepted: called on the client's thread before any status of the job.

        Raises:
            SubmitError: it cannot be started, with the system's words.
            UnknownDevicesError: it asks for devices of a kind that was never offered.
            SupervisorGoneError: the supervisor ended first.
        """

        def replied(reply: messages.Reply) -> None:
            if isinstance(reply, messages.Accepted):
                self._living[reply.job_id] = accepted_status(reply.pids)
                on_accepted(reply)

        attributes = Attributes.mine()
        reply = self._ask(
            lambda number: messages.Submit(
                number=number, spec=spec, environ=environ, cwd=cwd, attributes=attributes
            ),
            on_reply=replied,
        )
        assert isinstance(reply, messages.Accepted)
        return reply

    def signal(self, job_id: str, index: int | None, signum: int, *, group: bool = False) -> None:
        """Signal one process of a job or all; those that have ended are no error."""
        self._ask(
            lambda number: messages.Signal(
                number=number, job_id=job_id, process=index, signum=int(signum), group=group
            )
        )

    def interrupt(self, job_id: str) -> bool:
        """SIGINT to a job's process groups; False where it has ended, or was sent that before."""
        reply = self._ask(lambda number: messages.Interrupt(number=number, job_id=job_id))
        assert isinstance(reply, messages.Done)
        return reply.sent

    def terminate(self, job_id: str, grace: float) -> None:
        """SIGTERM now, SIGKILL after ``grace`` seconds; returns at once."""
        self._ask(lambda number: messages.Terminate(number=number, job_id=job_id, grace=grace))

    def kill(self, job_id: str) -> None:
        """SIGKILL to a job's process groups."""
        self._ask(lambda number: messages.Kill(number=number, job_id=job_id))

    def offer(self, devices: Iterable[Device], providers: Mapping[str, bytes]) -> None:
        """Make all devices of some kinds on this host known to the supervisor.

        Args:
            devices: all of them.
            providers: pickled providers by kind, also of kinds of which there is no device.

        Raises:
            SubmitError: they contradict each other.
        """
        self._ask(
            lambda number: messages.Devices(
                number=number, devices=tuple(devices), providers=dict(providers)
            )
        )

    def preload(self, modules: tuple[str, ...]) -> Mapping[str, str]:
        """Have modules imported in this process's environment and folder; returns those that failed, with the reason."""
        environ, cwd = dict(os.environ), working_folder()

        def replied(_: messages.Reply) -> None:
            self._importing = ""

        reply = self._ask(
            lambda number: messages.Preload(
                number=number, modules=modules, environ=environ, cwd=cwd
            ),
            on_reply=replied,
        )
        assert isinstance(reply, messages.Done)
        return reply.words

    def close(self) -> None:
        """End all jobs that were submitted here, the supervisor if it was started here, the thread.

        Returns once all that has ended. Idempotent. In a process that the user's own fork made it
        does nothing.
        """
        if self._connection.is_foreign:
            return
        ending = messages.Shutdown if self._owns else messages.EndAll
        with contextlib.suppress(SupervisorGoneError):
            self._ask(lambda number: ending(number=number))
        self._connection.close()

    def detach(self) -> None:
        """Close the channel and leave the supervisor and its jobs running, detached.

        No further status is reported.
        """
        if not self._connection.is_foreign:
            self._is_detached = True
            self._connection.close()

    def _ask(
        self,
        make: Callable[[int], messages.Request],
        *,
        on_reply: Callable[[messages.Reply], None] = lambda _: None,
    ) -> messages.Reply:
        reply = self._connection.ask(make, on_reply=on_reply)
        if isinstance(reply, messages.Refused):
            if reply.kind is messages.RefusalKind.DEVICES:
                raise UnknownDevicesError(reply.words)
            raise SubmitError(reply.words)
        return reply

    # -- on the connection's thread -------------------------------------------------------------

    def _handle(self, message: object) -> None:
        if isinstance(message, messages.StatusChanged):
            if message.status.state.is_terminal:
                self._living.pop(message.job_id, None)
            else:
                self._living[message.job_id] = message.status
            self._on_status(message.job_id, message.status)
        elif isinstance(message, messages.Notice):
            self._on_notice(message.words)
        elif isinstance(message, messages.Retired):
            self._is_retired = True
            self._on_retired(message.modules)
        elif isinstance(message, messages.Importing):
            self._importing = message.module
        elif isinstance(message, messages.Hello):
            self._importing = ""
            self._on_failures(message.failures)

    def _on_lost(self, was_importing: bool) -> None:
        if was_importing and self._importing:
            self._on_stuck(self._importing)
        if self._owns:
            for status in self._living.values():
                kill_groups(status)

    def _on_connection_end(self, words: str) -> None:
        for job_id, status in () if self._is_detached else self._living.items():
            self._on_status(job_id, lost_status(status, words or "its supervisor has ended"))
        self._living.clear()
        self._on_end(words)
