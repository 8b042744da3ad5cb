"""The other end of a supervisor's channel: requests from any thread, events on one of its own."""

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
from collections.abc import Callable, Mapping

import attrs

from fiber.exceptions import (
    BackendUnavailableError,
    FiberError,
    ForkedError,
    ResourceError,
    SubmitError,
    WireError,
)
from fiber.launch.supervisor import messages
from fiber.launch.supervisor.kernel import ProcessWatch
from fiber.launch.supervisor.protocol import Decoder, encode
from fiber.model import JobSpec, JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["SupervisorClient", "SupervisorGoneError"]

_READ = 1 << 18
_HEARTBEAT = 1.0
#: seconds that a supervisor may take to come up: it imports what it is told to
_START = 120.0
#: seconds that it may take to end once it has said that it will
_LEAVE = 10.0


class SupervisorGoneError(BackendUnavailableError):
    """The supervisor ended before it carried out a request; another one can be started."""


class _Pending:
    """A request whose reply has not come."""

    __slots__ = ("error", "event", "on_accepted", "reply", "request")

    def __init__(
        self,
        request: messages.Request,
        on_accepted: Callable[[messages.Accepted], None] | None,
    ) -> None:
        self.event = threading.Event()
        self.request = request
        self.reply: messages.Reply | None = None
        self.error: FiberError | None = None
        self.on_accepted = on_accepted


class SupervisorClient:
    """Speaks to one supervisor.

    Args:
        channel: connected to it; closed by :meth:`close`.
        on_status: called on the client's thread with each change of a job that was submitted here.
        on_notice: called on that thread with sentences for people.
        on_end: called on that thread once, when no more will come, with the reason; "" where the
            supervisor ended because there was nothing left to do or on request.
        process: the supervisor, where this process started it: it is killed when it is silent.
        lease: seconds of silence after which it is given up.
        name: of the thread.
    """

    def __init__(
        self,
        channel: socket.socket,
        *,
        on_status: Callable[[str, JobStatus], None],
        on_notice: Callable[[str], None],
        on_end: Callable[[str], None],
        process: subprocess.Popen[bytes] | None = None,
        lease: float = 3.0,
        name: str = "fiber-local",
    ) -> None:
        self._channel = channel
        self._on_status = on_status
        self._on_notice = on_notice
        self._on_end = on_end
        self._process = process
        self._lease = lease
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._living: dict[str, JobStatus] = {}
        self._ended: str | None = None
        self._leaving = False
        self._closing = False
        self._said_hello = process is None
        self._heard = time.monotonic()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def last_heard(self) -> float:
        """When the supervisor last gave a sign of life, on the monotonic clock."""
        return self._heard

    @property
    def has_ended(self) -> bool:
        """True once no request can be carried out any more."""
        return self._ended is not None or self._leaving

    @property
    def is_running(self) -> bool:
        """True while its thread may still call back."""
        return self._thread.is_alive()

    def submit(
        self,
        spec: JobSpec,
        *,
        environ: Mapping[str, str],
        cwd: str,
        on_accepted: Callable[[messages.Accepted], None],
    ) -> messages.Accepted:
        """Have a job started.

        Args:
            spec: the job.
            environ: the environment it inherits.
            cwd: its working directory where the spec names none.
            on_accepted: called on the client's thread before any status of the job.

        Raises:
            SubmitError: it cannot be started, with the system's words.
            ResourceError: this host will never have the devices.
            SupervisorGoneError: the supervisor ended first.
        """
        reply = self._ask(
            lambda number: messages.Submit(number=number, spec=spec, environ=environ, cwd=cwd),
            on_accepted=on_accepted,
        )
        assert isinstance(reply, messages.Accepted)
        return reply

    def signal(self, job_id: str, index: int | None, signum: int, *, group: bool = False) -> None:
        """Signal one process of a job or all; those that have ended are no error."""
        self._ask(
            lambda number: messages.Signal(
                number=number, job_id=job_id, index=index, signum=signum, group=group
            )
        )

    def terminate(self, job_id: str, grace: float) -> None:
        """SIGTERM now, SIGKILL after ``grace`` seconds; returns at once."""
        self._ask(lambda number: messages.Terminate(number=number, job_id=job_id, grace=grace))

    def kill(self, job_id: str) -> None:
        """SIGKILL to a job's process groups."""
        self._ask(lambda number: messages.Kill(number=number, job_id=job_id))

    def query(self, *job_ids: str) -> Mapping[str, JobStatus]:
        """Statuses of those jobs that the supervisor still has; of all without arguments."""
        reply = self._ask(lambda number: messages.Query(number=number, job_ids=job_ids or None))
        assert isinstance(reply, messages.Done)
        return reply.statuses

    def preload(self, modules: tuple[str, ...]) -> Mapping[str, str]:
        """Have modules imported; returns those that failed, with the reason."""
        reply = self._ask(lambda number: messages.Preload(number=number, modules=modules))
        assert isinstance(reply, messages.Done)
        return reply.words

    def close(self) -> None:
        """End all jobs that were submitted here, the supervisor if it was started here, the thread.

        Returns once all that has ended. Idempotent. In a process that the user's own fork made it
        does nothing.
        """
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(SupervisorGoneError):
            if self._process is None:
                self._ask(lambda number: messages.EndAll(number=number))
            else:
                self._ask(lambda number: messages.Shutdown(number=number))
        with self._lock:
            self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- requests -----------------------------------------------------------------------------

    def _ask(
        self,
        make: Callable[[int], messages.Request],
        *,
        on_accepted: Callable[[messages.Accepted], None] | None = None,
    ) -> messages.Reply:
        if os.getpid() != self._owner:
            msg = (
                f"process {os.getpid()} was forked from {self._owner}, whose supervisor it cannot "
                "use; start it with fiber.Process"
            )
            raise ForkedError(msg)
        number = next(self._numbers)
        pending = _Pending(make(number), on_accepted)
        frame = encode(pending.request)
        with self._lock:
            if self._ended is not None or self._leaving:
                raise SupervisorGoneError(self._ended or "the supervisor has ended")
            self._pending[number] = pending
        try:
            with self._sending:
                self._channel.sendall(frame)
        except OSError:
            # the thread finds out why, and fails this request with the rest
            self._wake()
        pending.event.wait()
        if pending.error is not None:
            raise pending.error
        reply = pending.reply
        assert reply is not None
        if isinstance(reply, messages.Refused):
            if reply.why is messages.Why.RESOURCES:
                raise ResourceError(reply.words)
            raise SubmitError(reply.words)
        return reply

    def _wake(self) -> None:
        with self._lock:
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"w")

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        decoder = Decoder()
        reason = ""
        watch = self._watch_process()
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            if watch is not None:
                selector.register(watch, selectors.EVENT_READ)
            turned = time.monotonic()
            beat = turned + _HEARTBEAT
            while True:
                ready = selector.select(max(0.0, beat - time.monotonic()))
                now = time.monotonic()
                if now - turned > _HEARTBEAT + self._lease / 2:
                    # this process was stopped or starved itself: what the supervisor said
                    # meanwhile lies in the socket still
                    self._heard = now
                turned = now
                try:
                    open_still = self._receive(decoder)
                except (OSError, WireError) as error:
                    reason = f"its channel broke: {error}"
                    break
                if not open_still:
                    reason = "" if self._leaving or self._closing else "it ended without a word"
                    break
                if any(key.fileobj == self._wake_reader for key, _ in ready):
                    os.read(self._wake_reader, 4096)
                    if self._closing:
                        break
                if watch is not None and any(key.fileobj is watch for key, _ in ready):
                    reason = "it ended without a word"
                    break
                silent = now - self._heard
                if silent > (self._lease if self._is_judged() else _START):
                    reason = f"it has been silent for {silent:.1f} s"
                    break
                if now >= beat:
                    beat = now + _HEARTBEAT
                    self._ping()
        if watch is not None:
            watch.close()
        self._finish(reason)

    def _watch_process(self) -> ProcessWatch | None:
        if self._process is None:
            return None
        try:
            return ProcessWatch(self._process.pid)
        except OSError:
            # the end of the channel tells as well, if nobody else holds the other end
            return None

    def _receive(self, decoder: Decoder) -> bool:
        while True:
            try:
                data = self._channel.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._heard = time.monotonic()
            decoder.feed(data)
            for message in decoder.messages():
                self._handle(message)

    def _handle(self, message: object) -> None:
        if isinstance(message, messages.Reply):
            with self._lock:
                pending = self._pending.pop(message.number, None)
            if pending is not None:
                if isinstance(message, messages.Accepted) and pending.on_accepted is not None:
                    self._living[message.job_id] = _accepted_status(message)
                    pending.on_accepted(message)
                if isinstance(pending.request, messages.Shutdown):
                    self._leave()
                pending.reply = message
                pending.event.set()
        elif isinstance(message, messages.StatusChanged):
            if message.status.state.is_terminal:
                self._living.pop(message.job_id, None)
            else:
                self._living[message.job_id] = message.status
            self._on_status(message.job_id, message.status)
        elif isinstance(message, messages.Notice):
            self._on_notice(message.words)
        elif isinstance(message, messages.Hello):
            self._said_hello = True
            for module, words in message.failures.items():
                self._on_notice(f"the supervisor cannot preload {module}: {words}")
        elif isinstance(message, messages.Leaving):
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._leaving = True

    def _is_judged(self) -> bool:
        # imports run user code, for as long as they like
        with self._lock:
            return self._said_hello and not any(
                isinstance(p.request, messages.Preload) for p in self._pending.values()
            )

    def _ping(self) -> None:
        # never wait here: a supervisor that does not read must be found out
        if self._sending.acquire(blocking=False):
            try:
                self._channel.send(encode(messages.Ping()), socket.MSG_DONTWAIT)
            except OSError:
                pass
            finally:
                self._sending.release()

    def _finish(self, reason: str) -> None:
        words = f"the supervisor of this run's jobs is lost: {reason}" if reason else ""
        if reason:
            self._kill_everything()
        with self._lock:
            self._ended = words
            pending = list(self._pending.values())
            self._pending.clear()
            os.close(self._wake_writer)
            os.close(self._wake_reader)
            self._wake_writer = -1
        self._channel.close()
        if self._process is not None:
            self._await_process(self._process)
        for job_id, status in self._living.items():
            self._on_status(job_id, _lost(status, words or "its supervisor was closed"))
        self._living.clear()
        self._on_end(words)
        for request in pending:
            request.error = SupervisorGoneError(words or "the supervisor has ended")
            request.event.set()

    def _await_process(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _kill_everything(self) -> None:
        if self._process is None:
            return
        # whoever hangs in a send is let go
        self._channel.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        for status in self._living.values():
            for process in status.processes:
                if process.pid is not None and not process.state.is_terminal:
                    _kill_group(process.pid)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            continue


def _accepted_status(reply: messages.Accepted) -> JobStatus:
    return JobStatus(
        state=JobState.PENDING,
        processes=tuple(
            ProcessStatus(index=index, state=JobState.RUNNING, pid=pid)
            for index, pid in enumerate(reply.pids)
        ),
    )


def _lost(status: JobStatus, message: str) -> JobStatus:
    reason = Reason(ReasonKind.NODE_LOST)
    processes = tuple(
        p
        if p.state.is_terminal
        else attrs.evolve(
            p, state=JobState.FAILED, reason=reason, exit_code=-signal.SIGKILL, message=message
        )
        for p in status.processes
    )
    return attrs.evolve(
        status,
        state=JobState.FAILED,
        reason=reason,
        exit_code=processes[0].exit_code if processes else -signal.SIGKILL,
        message=message,
        processes=processes,
    )
