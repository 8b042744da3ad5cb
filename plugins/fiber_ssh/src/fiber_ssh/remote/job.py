"""One job on its host: started, its output kept, its end told exactly."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

from fiber._agent.supervisor.kernel import die_with_parent, private_descriptor
from fiber._base.loop import Loop
from fiber_ssh.remote.kernel import (
    MARK,
    bound_port,
    clock,
    signal_group,
)
from fiber_ssh.remote.logfile import LogWriter

__all__ = ["ENDED", "Job"]

ENDED = ("succeeded", "failed")
_READ = 64 * 1024
#: a line that is not finished is told after so many seconds, or once it is so long
_PARTIAL_AFTER = 0.1
_PARTIAL_OVER = 64 * 1024
#: variables of the ssh session that happened to start the agent
_OF_SESSION = ("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "OLDPWD", "_")


class Job:
    """A job and what is known of it.

    Args:
        directory: its own folder.
        record: what is told of it, plain data.
    """

    def __init__(self, directory: str, record: dict[str, Any]) -> None:
        self.directory = directory
        self.record = record
        self.log = os.path.join(directory, "log")
        #: called when there is more output
        self.on_output: Callable[[], None] = lambda: None
        self._writer: LogWriter | None = None
        self._pipes: dict[int, int] = {}
        self._loop: Loop | None = None
        self._partial: dict[int, bytes] = {}
        self._partial_since: float | None = None
        self._kill_at: float | None = None
        self._status: int | None = None
        self._draining_until = 0.0

    @classmethod
    def load(cls, directory: str) -> Job | None:
        """A job that an earlier agent left; None where it left nothing that can be read."""
        try:
            with open(os.path.join(directory, "job.json"), encoding="utf-8") as file:
                record = json.load(file)
        except (OSError, ValueError):
            return None
        return cls(directory, record) if isinstance(record, dict) else None

    @property
    def id(self) -> str:
        """Its identity."""
        return str(self.record["id"])

    @property
    def has_ended(self) -> bool:
        """True in terminal states."""
        return self.record["state"] in ENDED

    @property
    def pid(self) -> int:
        """Its first process; 0 where it has none."""
        return int(self.record.get("pid") or 0)

    # -- start

    def start(self, order: dict[str, Any], loop: Loop) -> None:
        """Start it, and have its output read."""
        self._loop = loop
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self._writer = LogWriter(self.log)
        self.save()
        try:
            directory = self._directory_for(order)
        except OSError as error:
            self.end("start", None, f"it cannot be started: {error}")
            return
        environ = self._environ(order)
        given: list[int] = []
        if order.get("landing"):
            bound, self.record["landing"] = bound_port()
            given.append(bound.detach())
            environ["FIBER_REACH"] = f"streams:fd:{given[-1]}"
        private = order.get("private")
        if private is not None:
            given.append(private_descriptor(base64.b64decode(private), self.directory))
            environ["FIBER_BOOTSTRAP"] = f"fd:{given[-1]}"
        parent = None if self.record["detached"] else os.getpid()
        pipes = [os.pipe(), os.pipe()]
        try:
            process = subprocess.Popen(
                order["argv"],
                stdin=subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                cwd=directory,
                env=environ,
                pass_fds=given,
                start_new_session=True,
                preexec_fn=lambda: _prepare(parent),  # noqa: PLW1509 - the agent has one thread
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            for reading, _ in pipes:
                os.close(reading)
            self._failed_to_start(order, error)
            return
        finally:
            for _, writing in pipes:
                os.close(writing)
            for descriptor in given:
                os.close(descriptor)
        # the agent reaps by itself
        process.returncode = 0
        self.record.update(state="running", pid=process.pid)
        self.save()
        for stream, (reading, _) in enumerate(pipes):
            os.set_blocking(reading, False)
            self._pipes[stream] = reading
            loop.on_readable(reading, functools.partial(self._read, stream))

    def _environ(self, order: dict[str, Any]) -> dict[str, str]:
        environ = {k: v for k, v in os.environ.items() if k not in _OF_SESSION}
        for name in order.get("unset", ()):
            environ.pop(name, None)
        environ.update(order.get("env", {}))
        prefix = order.get("path")
        if prefix:
            environ["PATH"] = os.pathsep.join(filter(None, [prefix, environ.get("PATH")]))
        environ[MARK] = self.id
        return environ

    def _directory_for(self, order: dict[str, Any]) -> str:
        named = order.get("directory")
        if named:
            path = os.path.expanduser(str(named))
            if not os.path.isdir(path):
                # made by nobody: it may be on a file system that is not mounted
                raise NotADirectoryError(
                    "there is no folder " + path + " there, which the hosts file names as its "
                    "'directory', or FIBER_SSH_DIRECTORY for all hosts"
                )
            return path
        wanted = order.get("cwd")
        if wanted and os.path.isdir(wanted):
            return str(wanted)
        own = str(order["work"])
        os.makedirs(own, mode=0o700, exist_ok=True)
        return own

    def _failed_to_start(self, order: dict[str, Any], error: Exception) -> None:
        words = str(error)
        program = str(order["argv"][0])
        if program not in words:
            words = f"{program}: {words}"
        # as shells have it: it is there, and cannot be run
        code = None if isinstance(error, FileNotFoundError) else 126
        self.end("start", None, f"it cannot be started: {words}", code=code)

    # -- output

    def _read(self, stream: int) -> None:
        try:
            data = os.read(self._pipes[stream], _READ)
        except BlockingIOError:
            return
        if not data:
            self._close(stream)
            return
        data = self._partial.pop(stream, b"") + data
        whole, newline, rest = data.rpartition(b"\n")
        if len(rest) > _PARTIAL_OVER:
            whole, newline, rest = data, b"", b""
        if rest:
            self._partial[stream] = rest
            if self._partial_since is None:
                self._partial_since = clock()
        if newline or whole:
            self._write(stream, whole + newline)

    def _close(self, stream: int) -> None:
        descriptor = self._pipes.pop(stream)
        if self._loop is not None:
            self._loop.forget(descriptor)
        os.close(descriptor)

    def _write(self, stream: int, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(stream, data)
        self.on_output()

    def _flush(self) -> None:
        self._partial_since = None
        for stream in sorted(self._partial):
            self._write(stream, self._partial.pop(stream))

    # -- end

    def reaped(self, status: int, usage: resource.struct_rusage) -> None:
        """Its first process ended, was stopped or goes on."""
        if os.WIFSTOPPED(status):
            self.record["state"] = "suspended"
            self.record["reason"] = ["signal", os.WSTOPSIG(status)]
        elif os.WIFCONTINUED(status):
            self.record["state"] = "running"
            self.record["reason"] = None
        else:
            self._status = status
            self.record["peak"] = usage.ru_maxrss * 1024
            signal_group(self.pid, signal.SIGKILL)
            # what it wrote is in the pipes; a process that escaped us may hold them open
            self._draining_until = clock() + 1.0

    def settle(self) -> bool:
        """Do what is due; True where it has just ended."""
        now = clock()
        if self._kill_at is not None and now >= self._kill_at and not self.has_ended:
            self._kill_at = None
            signal_group(self.pid, signal.SIGKILL)
        if self._partial_since is not None and now >= self._partial_since + _PARTIAL_AFTER:
            self._flush()
        if self._status is None or (self._pipes and now < self._draining_until):
            return False
        for stream in list(self._pipes):
            self._close(stream)
        self._flush()
        status, self._status = self._status, None
        words = "" if self._writer is None else self._writer.problem
        message = f"some of its output was lost: {words}" if words else ""
        why = self.record.pop("doomed", None)
        if why is not None:
            self.end(why, None, self.record.pop("doom", ""))
        elif os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self.end("signal", number, message, code=-number)
        else:
            code = os.WEXITSTATUS(status)
            self.end("exit", code, message, code=code)
        return True

    @property
    def due(self) -> float | None:
        """When :meth:`settle` has something to do at the latest."""
        times = [self._kill_at]
        if self._partial_since is not None:
            times.append(self._partial_since + _PARTIAL_AFTER)
        if self._status is not None:
            times.append(self._draining_until if self._pipes else 0.0)
        return min((time for time in times if time is not None), default=None)

    def end(self, kind: str, number: int | None, message: str, *, code: int | None = None) -> None:
        """Note its end."""
        self.record.update(
            state="succeeded" if code == 0 else "failed",
            reason=[kind, number],
            code=code,
            message=message,
        )
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.save()
        self.on_output()

    def save(self) -> None:
        """Write down how it stands; a full disk is no reason to end it."""
        with contextlib.suppress(OSError):
            descriptor, name = tempfile.mkstemp(dir=self.directory)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(self.record, file)
            os.replace(name, os.path.join(self.directory, "job.json"))

    # -- what it is told

    def terminate(self, grace: float) -> None:
        """SIGTERM to its first process, and SIGKILL to all that is left after the grace."""
        if self.has_ended or self._status is not None:
            return
        due = clock() + grace
        self._kill_at = due if self._kill_at is None else min(due, self._kill_at)
        self.signal(signal.SIGTERM)
        # one that is stopped would not see it
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to its first group; all others follow once the first process has ended."""
        if not self.has_ended and self._status is None and self.pid:
            signal_group(self.pid, signal.SIGKILL)

    def doom(self, kind: str, message: str) -> None:
        """Kill it for a reason of the platform's."""
        if not self.has_ended and self._status is None and self.pid:
            self.record.update(doomed=kind, doom=message)
            signal_group(self.pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """A signal to its first process."""
        if self.pid and not self.has_ended and self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _prepare(parent: int | None) -> None:
    signal.set_wakeup_fd(-1)
    if parent is not None and not die_with_parent(parent):
        os._exit(1)
