"""One job as its host's agent knows it: its journal, the log of its output, and what starts it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from typing import Any

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.journal import JournaledJob
from fiber._agent.supervisor.output import LogFile
from fiber._base import values
from fiber.model import JobSpec, ProcessStatus
from fiber_ssh.remote.kernel import MARK
from fiber_ssh.remote.logfile import pieces

__all__ = ["Job", "LogSink", "directory_for", "environ_of", "spec_of"]

#: variables of the ssh session that happened to start the agent
_OF_SESSION = ("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "OLDPWD", "_")


class LogSink:
    """One output of a job, on its way to the log.

    Args:
        job: whose.
        stream: 0 or 1.
    """

    #: a log takes everything
    is_full = False

    def __init__(self, job: Job, stream: int) -> None:
        self._job = job
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Append bytes; what comes after the job's end is dropped."""
        for piece in pieces(self._stream, data):
            self._job.log.write(piece)
        self._job.on_output()


class Job:
    """A job and what is known of it.

    Args:
        directory: its own folder.
        known: the job as its journal has it.
        descriptors: owns that of its log.
    """

    def __init__(self, directory: str, known: JournaledJob, descriptors: Descriptors) -> None:
        self.directory = directory
        self.known = known
        #: port of loopback where its supervisor listens for streams into it
        self.stream_port: int | None = None
        self.log_path = os.path.join(directory, "log")
        self.log = LogFile(self.log_path, descriptors, self._on_loss)
        #: called when there is more output
        self.on_output: Callable[[], None] = lambda: None
        self._loss = ""
        self.sinks = (LogSink(self, 0), LogSink(self, 1))

    @property
    def id(self) -> str:
        """Its identity."""
        return self.known.id

    @property
    def process(self) -> ProcessStatus:
        """How its process stands."""
        return self.known.processes[0]

    @property
    def has_ended(self) -> bool:
        """True in terminal states."""
        return self.process.state.is_terminal

    @property
    def record(self) -> dict[str, Any]:
        """What is told of it, plain data."""
        return {"id": self.id, "events": self.known.events(), "stream_port": self.stream_port}

    def _on_loss(self, words: str) -> None:
        self._loss = f"; {words}"

    def update(self, process: ProcessStatus) -> None:
        """Note how its process stands."""
        if process.state.is_terminal:
            process = values.evolve(process, message=process.message + self._loss)
        self.known.processes[0] = process

    def close(self) -> None:
        """End its log, and tell those that follow it. Idempotent."""
        self.log.close()
        self.on_output()


def spec_of(order: Mapping[str, Any]) -> JobSpec:
    """The specification of an ordered job, as far as a host has to know it."""
    private = order.get("private")
    return JobSpec(
        run_id=order["run"],
        name=order["name"],
        argv=order["argv"],
        private=None if private is None else base64.b64decode(private),
        detached=order["detached"],
    )


def environ_of(order: Mapping[str, Any]) -> dict[str, str]:
    """The environment of an ordered job: this host's, changed as ordered, with the job's mark."""
    environ = {k: v for k, v in os.environ.items() if k not in _OF_SESSION}
    for name in order.get("unset", ()):
        environ.pop(name, None)
    environ.update(order.get("env", {}))
    prefix = order.get("path")
    if prefix:
        environ["PATH"] = os.pathsep.join(filter(None, [prefix, environ.get("PATH")]))
    environ[MARK] = order["id"]
    return environ


def directory_for(order: Mapping[str, Any], own: str) -> str:
    """The working directory of an ordered job; ``own`` is made where the host lacks the job's.

    Raises:
        OSError: there is none.
    """
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
    os.makedirs(own, mode=0o700, exist_ok=True)
    return own
