"""One process of a job on the fake platform: started, watched, signalled; its output kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["FakeProcess", "Lines", "job_status"]

#: seconds for which output is awaited that a process left open elsewhere
_OUTPUT_PATIENCE = 2.0
_TAIL = 10


class Lines:
    """The lines that the processes of a job write; thread-safe."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._complete = False

    def read(self, fd: int) -> None:
        """Take lines from a descriptor until its end, and close it."""
        with os.fdopen(fd, "rb") as stream:
            for line in stream:
                text = line.removesuffix(b"\n").decode(errors="replace")
                with self._changed:
                    self._lines.append(text)
                    self._changed.notify_all()

    def complete(self) -> None:
        """No more will come."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def tail(self, count: int = _TAIL) -> tuple[str, ...]:
        """The last lines there are."""
        with self._changed:
            return tuple(self._lines[-count:])

    def __call__(self, tail: int | None, follow: bool) -> Iterator[str]:
        """Yield the lines, and with ``follow`` those that come until there are no more."""
        with self._changed:
            position = 0 if tail is None else max(0, len(self._lines) - tail)

        def is_more() -> bool:
            return self._complete or len(self._lines) > position

        while True:
            with self._changed:
                if follow:
                    self._changed.wait_for(is_more)
                fresh = self._lines[position:]
                over = self._complete or not follow
            yield from fresh
            position += len(fresh)
            if over:
                return


class FakeProcess:
    """A process of this host in a session of its own.

    Args:
        index: its position within the job.
        lines: where its output goes.
        on_change: called after each change of :attr:`status`, on a thread of its own.
    """

    def __init__(self, index: int, lines: Lines, on_change: Callable[[FakeProcess], None]) -> None:
        self.status = ProcessStatus(index=index, state=JobState.PENDING)
        self._lines = lines
        self._on_change = on_change
        self._lock = threading.Lock()
        self._pid: int | None = None

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        private: bytes | None,
    ) -> None:
        """Start it; a program that cannot be started is a terminal status."""
        index = self.status.index
        with contextlib.ExitStack() as stack:
            keep: list[int] = []
            environ = dict(env)
            if private is not None:
                file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                file.write(private)
                file.seek(0)
                keep.append(file.fileno())
                environ["FIBER_BOOTSTRAP"] = f"fd:{file.fileno()}"
            try:
                process = subprocess.Popen(
                    argv,
                    env=environ,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=keep,
                )
            except OSError as error:
                self._set(
                    ProcessStatus(
                        index=index,
                        state=JobState.FAILED,
                        reason=Reason(ReasonKind.START),
                        exit_code=127,
                        message=f"{argv[0]} cannot be started: {error.strerror}",
                    )
                )
                return
        assert process.stdout is not None
        self._pid = process.pid
        self._set(ProcessStatus(index=index, state=JobState.RUNNING, pid=process.pid))
        reader = threading.Thread(
            target=self._lines.read, args=(os.dup(process.stdout.fileno()),), daemon=True
        )
        process.stdout.close()
        reader.start()
        threading.Thread(target=self._watch, args=(process, reader), daemon=True).start()

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to all of its session's first group; nothing after its end."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._pid is not None:
                (os.killpg if group else os.kill)(self._pid, number)

    def _watch(self, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        pid = process.pid
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
            if not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
                break
            stopped = os.WIFSTOPPED(status)
            state = JobState.SUSPENDED if stopped else JobState.RUNNING
            why = Reason(ReasonKind.SIGNAL, os.WSTOPSIG(status)) if stopped else None
            self._set(ProcessStatus(index=self.status.index, state=state, pid=pid, reason=why))
        with self._lock:
            self._pid = None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        reader.join(_OUTPUT_PATIENCE)
        reason = Reason(ReasonKind.EXIT, code) if code >= 0 else Reason(ReasonKind.SIGNAL, -code)
        self._set(
            ProcessStatus(
                index=self.status.index,
                state=JobState.FAILED if code else JobState.SUCCEEDED,
                pid=pid,
                reason=reason if code else None,
                exit_code=code,
                message=f"ended by {reason}" if code else "",
                log_tail=self._lines.tail(),
            )
        )

    def _set(self, status: ProcessStatus) -> None:
        self.status = status
        self._on_change(self)


def job_status(processes: Sequence[ProcessStatus], host: str) -> JobStatus:
    """The status of a job whose processes stand as given."""
    states = {process.state for process in processes}
    failed = next((p for p in processes if p.state is JobState.FAILED), None)
    first = processes[0]
    if all(state.is_terminal for state in states):
        return JobStatus(
            state=JobState.SUCCEEDED if failed is None else JobState.FAILED,
            reason=None if failed is None else failed.reason,
            exit_code=first.exit_code,
            message="" if failed is None else failed.message,
            host=host,
            processes=tuple(processes),
        )
    alive = {state for state in states if not state.is_terminal}
    state = alive.pop() if len(alive) == 1 else JobState.RUNNING
    reason = next(p.reason for p in processes if not p.state.is_terminal)
    suspended = state is JobState.SUSPENDED
    return JobStatus(
        state=state,
        reason=reason if suspended else None,
        host=host,
        processes=tuple(processes),
    )


def python_entry(entry: str, index: int) -> tuple[str, ...]:
    """An argv that calls an entry."""
    return (sys.executable, "-m", "fiber.testing.entry", entry, str(index))
