"""The runs that have jobs on a host, and what is on the disk of them: journals, leases and logs.

A log has the output of a job in pieces, in the order in which they came, each with its stream.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from fiber._agent.supervisor.journal import Journal, JournaledJob, lost_process, read_journal
from fiber._agent.supervisor.output import LogFile
from fiber._base import values
from fiber._wire.descriptors import Descriptors
from fiber.model import JobSpec, ProcessStatus
from fiber_ssh.remote.kernel import MARK, complain, kill_marked

_HEAD = struct.Struct("!BI")
_CHUNK = 64 * 1024


def pieces(stream: int, data: bytes) -> Iterator[bytes]:
    """Yield output as it is in a log, each piece with its stream."""
    for start in range(0, len(data), _CHUNK):
        piece = data[start : start + _CHUNK]
        yield _HEAD.pack(stream, len(piece)) + piece


def read_piece(file: BinaryIO) -> tuple[int, bytes] | None:
    """The next piece of a log and its stream; None where it is not there yet: the log may still grow."""
    begin = file.tell()
    head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        stream, length = _HEAD.unpack(head)
        # what was not written here may announce gigabytes, for which read() would make room
        data = file.read(min(length, _CHUNK))
        if len(data) == length:
            return stream, data
    file.seek(begin)
    return None


def offset_of_tail(path: str, count: int) -> tuple[int, int]:
    """Where the last lines begin: the offset of a piece, and how many of its bytes to leave out."""
    # where each line begins
    places: deque[tuple[int, int]] = deque(maxlen=max(1, count))
    at_start = True
    with open(path, "rb") as file:
        begin = 0
        while (piece := read_piece(file)) is not None:
            position = 0
            data = piece[1]
            while position < len(data):
                if at_start:
                    places.append((begin, position))
                newline = data.find(b"\n", position)
                at_start = newline >= 0
                position = newline + 1 if at_start else len(data)
            begin = file.tell()
    return places[0] if places and count > 0 else (begin, 0)


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


#: seconds for a run whose owner was never heard of, and did not say how long it may be silent
LEASE = 30.0
#: where an agent that comes after this one finds what the owner said
_SAID = "lease"


class Run:
    """One run and its jobs.

    Args:
        root: the agent's folder.
        run_id: the run.
    """

    def __init__(self, root: str, run_id: str) -> None:
        self.id = run_id
        self.directory = os.path.join(root, "runs", run_id)
        self.jobs: dict[str, Job] = {}
        #: seconds for which its owner may be silent
        self.lease = LEASE
        #: True once its jobs are ended and it shall be forgotten with all it left
        self.is_condemned = False
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        #: of its jobs
        self.journal = Journal(self.directory, complain)
        self._descriptor = self.journal.open()

    @property
    def work(self) -> str:
        """Where its jobs run whose own directory this host lacks."""
        return os.path.join(self.directory, "work")

    @property
    def _said(self) -> str:
        return os.path.join(self.directory, _SAID)

    def recall(self) -> None:
        """It is of an earlier agent, under which its jobs have ended."""
        with contextlib.suppress(OSError, ValueError), open(self._said, encoding="ascii") as file:
            self.lease = float(file.read())
        folders = set(os.listdir(self.directory))
        left = [job for job in read_journal(self.directory).values() if job.id in folders]
        # their numbers may be those of others by now, their marks are not
        kill_marked(folders - {job.id for job in left if job.ended is not None})
        for job in left:
            process = job.processes[0]
            if not process.state.is_terminal:
                process = lost_process(process)
                self.journal.ended(job.id, process)
                job.processes[0] = process
            self.jobs[job.id] = Job(self.folder_of(job.id), job, Descriptors())

    def folder_of(self, job_id: str) -> str:
        """Where a job's files are."""
        return os.path.join(self.directory, job_id)

    def keep_lease(self, lease: float) -> None:
        """Note for how long its owner says that it may be silent, also for the next agent."""
        if lease != self.lease:
            # a full disk is no reason not to work for it
            with contextlib.suppress(OSError), open(self._said, "w", encoding="ascii") as file:
                file.write(str(lease))
        self.lease = lease

    def alive(self, *, detached: bool | None = None) -> list[Job]:
        """Jobs that have not ended."""
        return [
            job
            for job in self.jobs.values()
            if not job.has_ended and detached in (None, job.known.detached)
        ]

    @property
    def keeps_anything(self) -> bool:
        """True where something of it shall outlive its owner."""
        return any(job.known.detached for job in self.jobs.values())

    def forget_attached(self) -> None:
        """Remove what ended jobs left that were not detached."""
        for job_id, job in list(self.jobs.items()):
            if job.has_ended and not job.known.detached:
                del self.jobs[job_id]
                shutil.rmtree(job.directory, ignore_errors=True)

    def remove(self) -> None:
        """Remove all it left on the disk."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        shutil.rmtree(self.directory, ignore_errors=True)


def load_runs(root: str) -> Iterator[Run]:
    """What an earlier agent left."""
    folder = os.path.join(root, "runs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for run_id in sorted(os.listdir(folder)):
        run = Run(root, run_id)
        run.recall()
        yield run
