"""What a master or a worker asks of its supervisor, and what it hears of its jobs."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping

from fiber._agent.supervisor import lost_supervisor, messages
from fiber._agent.supervisor.connection import Connection, SupervisorGoneError
from fiber.exceptions import ResourceError, SubmitError
from fiber.model import Device, JobSpec, JobStatus

__all__ = ["SupervisorClient", "SupervisorGoneError", "UnknownDevicesError"]


class UnknownDevicesError(ResourceError):
    """The supervisor was never told of devices of these kinds; see :meth:`SupervisorClient.offer`."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(str(self).split())


class SupervisorClient:
    """Speaks to one supervisor; thread-safe.

    Args:
        channel: connected to it; closed by :meth:`close`.
        on_status: called on the client's thread with each change of a job that was submitted here.
        on_notice: called on that thread with sentences for people.
        on_end: called on that thread once, when no more will come, with the reason; "" where the
            supervisor ended because there was nothing left to do or on request.
        process: the supervisor, where this process started it: it is killed when it is silent.
        lease: seconds of silence after which it is given up, and its jobs with it.
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
        name: str = "fiber-jobs",
    ) -> None:
        self._on_status = on_status
        self._on_notice = on_notice
        self._on_end = on_end
        self._owns = process is not None
        self._has_left = False
        self._living: dict[str, JobStatus] = {}
        self._connection = Connection(
            channel,
            on_message=self._handle,
            on_lost=self._on_lost,
            on_end=self._on_connection_end,
            process=process,
            lease=lease,
            name=name,
        )

    @property
    def last_heard(self) -> float:
        """When the supervisor last gave a sign of life, on the monotonic clock."""
        return self._connection.last_heard

    @property
    def has_ended(self) -> bool:
        """True once no request can be carried out any more."""
        return self._connection.has_ended

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
        """Have a job started.

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
                self._living[reply.job_id] = lost_supervisor.accepted(reply.pids)
                on_accepted(reply)

        reply = self._ask(
            lambda number: messages.Submit(number=number, spec=spec, environ=environ, cwd=cwd),
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
        """Tell of all devices of some kinds on this host.

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
        if self._connection.is_foreign:
            return
        ending = messages.Shutdown if self._owns else messages.EndAll
        with contextlib.suppress(SupervisorGoneError):
            self._ask(lambda number: ending(number=number))
        self._connection.close()

    def leave(self) -> None:
        """Close the channel and leave the supervisor and its jobs alone: they are detached.

        Nothing more is told of them.
        """
        if not self._connection.is_foreign:
            self._has_left = True
            self._connection.close()

    def _ask(
        self,
        make: Callable[[int], messages.Request],
        *,
        on_reply: Callable[[messages.Reply], None] = lambda _: None,
    ) -> messages.Reply:
        reply = self._connection.ask(make, on_reply=on_reply)
        if isinstance(reply, messages.Refused):
            if reply.why is messages.Why.DEVICES:
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
        elif isinstance(message, messages.Hello):
            for module, words in message.failures.items():
                self._on_notice(f"the supervisor cannot preload {module}: {words}")

    def _on_lost(self) -> None:
        if self._owns:
            for status in self._living.values():
                lost_supervisor.kill(status)

    def _on_connection_end(self, words: str) -> None:
        for job_id, status in () if self._has_left else self._living.items():
            self._on_status(
                job_id, lost_supervisor.lost(status, words or "its supervisor has ended")
            )
        self._living.clear()
        self._on_end(words)
