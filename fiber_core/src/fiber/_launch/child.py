"""Handle of a started job in its parent; what ``multiprocessing`` calls a Popen."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base.interpreter import unless_finalizing
from fiber._base.log import lazy_logger
from fiber._base.threads import Deadline, turn
from fiber._launch import status_merge
from fiber.exceptions import FiberError, StartError
from fiber.model import Job, JobState, JobStatus, ProcessStatus, Reason, ReasonKind

if TYPE_CHECKING:
    from fiber._wire.endpoint import Peer

log = lazy_logger()

_START_FAILURES = frozenset({ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE, ReasonKind.START})
#: ends by the platform's will that nobody else tells; a lost host has a line of its own
_ENDED_BY_PLATFORM = status_merge.OF_PLATFORMS - {ReasonKind.NODE_LOST}

#: status of a job whose backend reports nothing any more
ORPHANED = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.NODE_LOST),
    message="the backend was closed or lost while it ran",
)


class Control(Protocol):
    """Control of children and their jobs, as all but :class:`~fiber._launch.launcher.Launcher` itself use it."""

    @property
    def start_timeout(self) -> float: ...
    def child_of(self, ident: str) -> tuple[Child, int] | None: ...
    def early_statuses(self, job: Job) -> list[JobStatus]: ...
    def settle_output(self) -> None: ...
    def signal(self, child: Child, index: int, signum: int) -> None: ...
    def pass_interrupt_on(self, child: Child, *, again: bool) -> bool: ...
    def terminate(self, child: Child) -> None: ...
    def kill(self, child: Child) -> None: ...


class Child:
    """Job of one process object, as its parent sees it. Thread-safe; every wait ends with the job.

    The end of a job that was asked to end is reported within a bound, whatever its platform does: see
    ``Timing.unconfirmed``.
    """

    #: read by the stdlib's pickling support
    method = "fiber"

    def __init__(
        self,
        ident: str,
        name: str,
        launcher: Control,
        *,
        processes: int = 1,
        foreground: bool = False,
        image: str | None = None,
        on_status: Callable[[Child, JobStatus], None] | None = None,
    ) -> None:
        self.ident = ident
        self.name = name
        #: the image that was asked for; None for the backend's own choice, or where it runs none
        self.image = image
        self.processes = processes
        #: True where it is interrupted when this process is; workers of a pool are ended by it
        self.foreground = foreground
        self.job: Job | None = None
        self.status: JobStatus | None = None
        #: True once the log says that it did not start
        self.is_failure_logged = False
        self._launcher = launcher
        self._on_status = on_status
        self._changed = threading.Condition()
        self._sentinels: tuple[int, int] | None = None
        self._pid: int | None = None
        self._host = ""
        self._releases: list[Callable[[], Any]] = []
        # the last report of its supervisor, and what is to be called with the ends of its processes
        self._report: JobStatus | None = None
        self._on_ends: list[tuple[int, Callable[[ProcessStatus], Any]]] = []
        self._released = False
        self._failure = ""
        self._waiting = 0

    # -- the interface of multiprocessing's Popen

    @property
    def pid(self) -> int | None:
        """Process id on its host; waits for the child's hello within ``start_timeout``."""
        if self.known_pid is None and self.job is not None:
            self._wait_for(
                lambda: self._pid is not None or self._has_ended(), self._launcher.start_timeout
            )
        return self.known_pid

    @property
    def known_pid(self) -> int | None:
        """Process id on its host where it is known by now."""
        if self._pid is None and self.job is not None:
            pids = self.job.data.get("pids") or ()
            return int(pids[0]) if pids else None
        return self._pid

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal, or None while it runs."""
        status = self.status
        if status is None or not status.state.is_terminal:
            return None
        if status.exit_code is not None:
            return status.exit_code
        # it has ended without a code: lost with its node, or never started
        return 1

    def poll(self) -> int | None:
        """The same as :attr:`returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; the exit code, or None when ``timeout`` seconds have passed."""
        with self._changed:
            self._waiting += 1
            try:
                self._wait_for(self._has_ended, timeout)
            finally:
                self._waiting -= 1
        code = self.returncode
        if code is not None:
            # what it wrote before its end comes before what its parent writes after that
            self._launcher.settle_output()
        return code

    def terminate(self) -> None:
        """SIGTERM; ignored where it has ended."""
        if self._has_ended():
            return
        try:
            self._launcher.terminate(self)
        except FiberError as error:
            # called for daemons at the interpreter's exit, which an error would cut short
            if not util.is_exiting():
                raise
            log.warning("fiber: %s could not be asked to end: %s", self.name, error)

    def kill(self) -> None:
        """SIGKILL; ignored where it has ended."""
        if not self._has_ended():
            self._launcher.kill(self)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it; ignored where it has ended."""
        self.signal(0, signal.SIGINT)

    def pass_interrupt_on(self, *, again: bool) -> bool:
        """Interrupt it because this process was interrupted.

        Args:
            again: True to interrupt one that was interrupted before, save where its platform knows
                better.

        Returns:
            False where nothing was sent.
        """
        if not self.foreground or self._has_ended():
            return False
        return self._launcher.pass_interrupt_on(self, again=again)

    def signal(self, index: int, signum: int) -> None:
        """Send a signal to one of its processes; ignored where it has ended."""
        if not self._has_ended():
            self._launcher.signal(self, index, signum)

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for its end."""
        return self._waiting > 0

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once it has ended."""
        with self._changed:
            if self._sentinels is None:
                self._sentinels = os.pipe()
                if self._has_ended():
                    self._signal_end()
            return self._sentinels[0]

    def close(self) -> None:
        """Release the sentinel."""
        with self._changed:
            if self._sentinels is not None:
                for fd in self._sentinels:
                    if fd >= 0:
                        os.close(fd)
                self._sentinels = None

    def duplicate_for_child(self, fd: int) -> int:
        """Refuse the stdlib's request to pass on a descriptor, useless on another machine."""
        msg = (
            f"descriptor {fd} cannot be sent to another process of fiber; use fiber's own Queue, "
            "Pipe, Lock or Value in place of multiprocessing's, and fiber.Executor in place of "
            "concurrent.futures.ProcessPoolExecutor"
        )
        raise TypeError(msg)

    @unless_finalizing
    def __del__(self) -> None:
        # user code may have closed its descriptors
        with contextlib.suppress(OSError):
            self.close()

    # -- called by the launcher

    def submitted(self, job: Job) -> None:
        """Note the platform's job."""
        self.job = job

    def connected(self, peer: Peer) -> None:
        """Note the hello of one of its processes."""
        with self._changed:
            known = self.known_pid
            if peer.hello is not None and self._pid is None:
                self._pid, self._host = peer.hello.pid, peer.hello.host
            self._notify(known)

    def changed(self, status: JobStatus) -> None:
        """Note a new status; statuses after the end are ignored."""
        with self._changed:
            if self._has_ended():
                return
            self.status = status
            known = self.known_pid
            if self._pid is None and status.processes and status.processes[0].pid is not None:
                self._pid = status.processes[0].pid
            if self._has_ended():
                self._signal_end()
            self._notify(known)
        self.note_report(status)
        if self._on_status is not None:
            self._on_status(self, status)

    def note_report(self, status: JobStatus) -> None:
        """Note a report of its supervisor, before anybody knows the reasons of ends; perhaps not the first."""
        self._report = status
        self._tell_ends()

    def on_process_end(self, index: int, action: Callable[[ProcessStatus], Any]) -> None:
        """Call ``action`` with the status with which one of its processes ends, or has ended."""
        with self._changed:
            self._on_ends.append((index, action))
        self._tell_ends()

    def _tell_ends(self) -> None:
        if not self._on_ends or self._report is None:
            return
        with self._changed:
            ends = [
                (action, status_merge.process_of(self._report, index), (index, action))
                for index, action in self._on_ends
            ]
            ended = [one for one in ends if one[1].state.is_terminal]
            for _, _, key in ended:
                self._on_ends.remove(key)
        for action, status, _ in ended:
            action(status)

    def _notify(self, known: int | None) -> None:
        # what is waited for is the process id, where it was not known, and the end: to wake those
        # that wait for the end whenever something happens takes longer than all else that is done here
        if self._has_ended() or (known is None and self.known_pid is not None):
            self._changed.notify_all()

    def set_start_failure(self, why: str) -> None:
        """Note why it did not start; the first reason counts."""
        self._failure = self._failure or why

    def on_release(self, action: Callable[[], Any]) -> None:
        """Call ``action`` at the job's end, to release an object that its pickle refers to."""
        with self._changed:
            if not self._released:
                self._releases.append(action)
                return
        action()

    def release(self) -> None:
        """Release the objects that its pickle refers to."""
        with self._changed:
            self._released = True
            actions, self._releases = self._releases, []
        for action in actions:
            action()

    # -- for the rest of the core

    @property
    def host(self) -> str:
        """The host it runs on, once known."""
        if self.status is not None and self.status.host:
            return self.status.host
        return self._host

    def ident_of(self, index: int) -> str:
        """Identity within the run of one of its processes."""
        return self.ident if self.processes == 1 else f"{self.ident}.{index}"

    def process_status(self, index: int = 0) -> ProcessStatus | None:
        """Latest status of one of its processes."""
        status = self.status
        if status is not None:
            for process in status.processes:
                if process.index == index:
                    return process
        return None

    @property
    def end_status(self) -> ProcessStatus | None:
        """Status with which the first process ended; None before that."""
        status = self.status
        if status is None or not status.state.is_terminal:
            return None
        return status_merge.process_of(status, 0)

    @property
    def failure(self) -> str:
        """Reason why it did not start, once it has ended; "" otherwise."""
        status = self.status
        if status is None or status.state is not JobState.FAILED:
            return ""
        if (
            not self._failure
            and status.exit_code is None
            and status.reason is not None
            and status.reason.kind in _START_FAILURES
        ):
            return f"{status.reason}: {status.message}"
        return self._failure

    def raise_if_never_started(self) -> None:
        """Raise StartError where it has ended without ever having come up.

        Raises:
            StartError: with the platform's own words.
        """
        if self.failure:
            msg = f"{self.name} did not start ({self.failure})"
            raise StartError(msg)

    def _has_ended(self) -> bool:
        return self.status is not None and self.status.state.is_terminal

    def _signal_end(self) -> None:
        if self._sentinels is not None and self._sentinels[1] >= 0:
            os.close(self._sentinels[1])
            self._sentinels = (self._sentinels[0], -1)

    def _wait_for(self, ready: Callable[[], bool], timeout: float | None) -> None:
        deadline = Deadline(timeout)
        with self._changed:
            while not ready():
                left = deadline.left
                if left == 0:
                    return
                self._changed.wait(turn(left))


def log_end(child: Child, status: JobStatus) -> None:
    """Log an end that its exit code does not explain; for ``on_status``.

    An error tells a start that failed to whoever waits for the end: in that case it is not logged.
    """
    if not status.state.is_terminal:
        return
    if child.failure:
        if not child.is_awaited:
            child.is_failure_logged = True
            log.warning("fiber: %s did not start (%s)", child.name, child.failure)
        return
    process = status_merge.process_of(status, 0)
    reason = process.reason or status.reason
    if reason is not None and reason.kind in _ENDED_BY_PLATFORM:
        words = process.message or status.message or "no reason was given"
        kind = "" if str(reason) in words else f" ({reason})"
        log.warning("fiber: %s was ended%s: %s", child.name, kind, words)
