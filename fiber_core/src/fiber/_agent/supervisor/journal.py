"""Journal of a run's jobs on one host, by which other processes know them without their supervisor.

``jobs.jsonl`` in the run directory has one JSON object a line, an *event*: ``submitted``, ``started``
(with the start time that makes a process id unmistakable) and ``ended``. Supervisors append to it
(:class:`Journal`); readers compare it with the processes that live (:class:`JournalReader`).

Events are also how jobs are told to programs of another release, on another host: the event
``changed`` is in no journal, and has the present status of a process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fiber._agent.supervisor import JOURNAL
from fiber._agent.supervisor.jobs import Owner, combine
from fiber._base import values
from fiber._base.limits import explained
from fiber.backend_parts.liveness import Liveness, is_same, start_time
from fiber.backend_parts.liveness import Owner as Process
from fiber.model import Job, JobSpec, JobState, JobStatus, ProcessStatus, Reason, ReasonKind


class Journal:
    """Appends to the journal.

    Args:
        directory: the run directory.
        on_failure: called once with a sentence when it cannot be written.
    """

    def __init__(self, directory: str, on_failure: Callable[[str], None]) -> None:
        self._path = Path(directory, JOURNAL)
        self._on_failure = on_failure
        self._descriptor: int | None = None
        self._broken = False
        self._supervisor = Process.current()

    def open(self) -> int | None:
        """Open the file; returns its descriptor, which the caller owns, or None."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            self._fail(error)
        return self._descriptor

    def submitted(self, job_id: str, spec: JobSpec, owner: Owner, host: str) -> None:
        """Append that a job was accepted."""
        parent = None if owner is None else owner[0]
        job = JournaledJob.of(job_id, spec, host, self._supervisor, parent=parent)
        self._append(job.submission())

    def started(self, job_id: str, index: int, pid: int) -> None:
        """Append that a process of a job was started."""
        self._append(
            {
                "event": "started",
                "job": job_id,
                "index": index,
                "pid": pid,
                "start_time": start_time(pid),
            }
        )

    def ended(self, job_id: str, process: ProcessStatus) -> None:
        """Append that a process of a job ended."""
        self._append(process_event("ended", job_id, process))

    def _append(self, event: Mapping[str, Any]) -> None:
        if self._descriptor is None or self._broken:
            return
        line = _ENCODER.encode(event).encode() + b"\n"
        try:
            while line:
                # where a part was written, the next call tells why not all
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._broken = True
        self._on_failure(f"the journal {self._path} is incomplete from here: {explained(error)}")


#: made once: dumps() makes one for each line
_ENCODER = json.JSONEncoder(separators=(",", ":"))
#: of one job: a number beyond it was not written by a supervisor, and would take the memory
_MOST_PROCESSES = 2**16
_ID = rb'(?m)^\{"event":"submitted","job":"(\w+)"'


@values.define(kw_only=True)
class JournaledJob:
    """Job as read from its journal."""

    #: its id
    id: str
    #: the name asked for
    name: str
    #: the run it belongs to
    run_id: str
    #: its program and arguments
    argv: tuple[str, ...]
    #: the job that submitted it; None for the master's
    parent: str | None
    #: True where it outlives the program that submitted it
    detached: bool = False
    #: where it runs
    host: str
    #: its supervisor
    supervisor: Process
    #: when it was submitted, seconds since the epoch
    submitted: float
    #: when it ended, seconds since the epoch
    ended: float | None = None
    #: its processes as last written down
    processes: list[ProcessStatus]
    #: start times by process id
    start_times: dict[int, float | None] = values.field(factory=dict)

    @classmethod
    def of(
        cls,
        job_id: str,
        spec: JobSpec,
        host: str,
        supervisor: Process,
        *,
        parent: str | None = None,
    ) -> JournaledJob:
        """A job that is submitted now."""
        return cls(
            id=job_id,
            name=spec.name,
            run_id=spec.run_id,
            argv=tuple(spec.argv),
            parent=parent,
            detached=spec.detached,
            host=host,
            supervisor=supervisor,
            submitted=time.time(),
            processes=_pending(spec.processes),
        )

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]]) -> JournaledJob:
        """The job that :meth:`events` tells of.

        Raises:
            ValueError: they make no sense.
        """
        jobs: dict[str, JournaledJob] = {}
        try:
            for event in events:
                _apply(jobs, event)
            (job,) = jobs.values()
        except _NONSENSE as error:
            msg = f"a job is told of in a way that makes no sense: {error!r}"
            raise ValueError(msg) from error
        return job

    def events(self) -> list[dict[str, Any]]:
        """What makes the same job of it with :meth:`from_events`, as plain data."""
        changes = [process_event("changed", self.id, process) for process in self.processes]
        return [self.submission(), *changes]

    def submission(self) -> dict[str, Any]:
        """The event of its submission."""
        return {
            "event": "submitted",
            "job": self.id,
            "name": self.name,
            "run": self.run_id,
            "argv": list(self.argv),
            "processes": len(self.processes),
            "parent": self.parent,
            "detached": self.detached,
            "host": self.host,
            "supervisor": list(self.supervisor),
            "time": self.submitted,
        }

    def living(self) -> tuple[int, ...]:
        """Process ids that live, with the journal's start time; () where they cannot be seen."""
        is_seen = self.supervisor.is_judged_here
        return tuple(
            p.pid
            for p in self.processes
            if is_seen
            and p.pid is not None
            and not p.state.is_terminal
            and is_same(p.pid, self.start_times.get(p.pid))
        )

    def status(self) -> JobStatus:
        """Present status, from the journal and from whether the supervisor that writes it lives.

        Processes without an ``ended`` line are lost with a supervisor that is dead; where the
        supervisor cannot be seen from this process the status is UNKNOWN.
        """
        watched = self.supervisor.liveness()
        is_over = all(p.state.is_terminal for p in self.processes)
        if watched is Liveness.UNKNOWN and not is_over:
            return JobStatus(
                state=JobState.UNKNOWN,
                message="its processes are in another container or on another host",
                host=self.host,
                processes=tuple(self.processes),
            )
        is_lost = watched is Liveness.DEAD
        return combine(
            [lost_process(p) if is_lost and not p.state.is_terminal else p for p in self.processes],
            host=self.host,
        )

    def job(self, backend: str, **data: Any) -> Job:
        """The job as users of a backend know it, with data of the backend's."""
        pids = [p.pid for p in self.processes if p.pid is not None]
        return Job(
            id=self.id,
            name=self.name,
            run_id=self.run_id,
            backend=backend,
            data={"pids": pids, "host": self.host, **data},
            argv=self.argv,
            submitted=self.submitted,
        )


def lost_process(process: ProcessStatus) -> ProcessStatus:
    """A process that ended with its supervisor."""
    return values.evolve(
        process,
        state=JobState.FAILED,
        reason=Reason(ReasonKind.NODE_LOST),
        exit_code=-signal.SIGKILL,
        message="lost with its supervisor",
    )


class JournalReader:
    """Reader of a run directory's journal; each call reads only what was appended since.

    Args:
        directory: the run directory.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory, JOURNAL)
        self._jobs: dict[str, JournaledJob] = {}
        self._read = 0
        self._file: tuple[int, int] | None = None

    def jobs(self) -> dict[str, JournaledJob]:
        """All jobs in the order of their submission; each call updates the same objects."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._file != (status.st_dev, status.st_ino) or status.st_size < self._read:
                    self._file, self._read, self._jobs = (status.st_dev, status.st_ino), 0, {}
                file.seek(self._read)
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            self._file, self._jobs = None, {}
            return self._jobs
        # a line that is being written is read by the next call
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                _apply(self._jobs, json.loads(line))
            except _NONSENSE:
                # a line cut short by a full disk, or of another version
                continue
        return self._jobs


def read_journal(directory: str | Path) -> dict[str, JournaledJob]:
    """All jobs in the journal of a run directory, in the order of their submission."""
    return JournalReader(directory).jobs()


def read_ids(directory: str | Path) -> set[str]:
    """The ids of all jobs in a journal, however long it is, in little time."""
    try:
        text = Path(directory, JOURNAL).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {found.decode() for found in re.findall(_ID, text)}


#: raised by events that make no sense
_NONSENSE = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
_STATES = {state.value: state for state in JobState}
_KINDS = {kind.value: kind for kind in ReasonKind}


def process_event(event: str, job_id: str, process: ProcessStatus) -> dict[str, Any]:
    """An event that has the status of a process."""
    reason = process.reason
    return {
        "event": event,
        "job": job_id,
        "index": process.index,
        "pid": process.pid,
        "state": process.state.value,
        "reason": None if reason is None else reason.kind.value,
        "number": None if reason is None else reason.number,
        "exit_code": process.exit_code,
        "message": process.message,
        "log_tail": list(process.log_tail),
        "peak_memory": process.peak_memory,
        "time": time.time(),
    }


def _pending(count: int) -> list[ProcessStatus]:
    return [ProcessStatus(index=i, state=JobState.PENDING) for i in range(count)]


def _apply(jobs: dict[str, JournaledJob], event: Mapping[str, Any]) -> None:
    if event["event"] == "submitted":
        supervisor = Process.decode(json.dumps(event["supervisor"]))
        if supervisor is None or not 0 < event["processes"] <= _MOST_PROCESSES:
            raise ValueError(event)
        jobs[event["job"]] = JournaledJob(
            id=event["job"],
            name=event["name"],
            run_id=event["run"],
            argv=tuple(event["argv"]),
            parent=event["parent"],
            detached=event.get("detached", False),
            host=event["host"],
            supervisor=supervisor,
            submitted=event["time"],
            processes=_pending(event["processes"]),
        )
        return
    job = jobs[event["job"]]
    index = event["index"]
    if event["event"] == "started":
        if not isinstance(event["pid"], int):
            raise TypeError(event["pid"])
        job.start_times[event["pid"]] = event["start_time"]
        job.processes[index] = ProcessStatus(index=index, state=JobState.RUNNING, pid=event["pid"])
    elif event["event"] in ("ended", "changed"):
        kind = event["reason"]
        if event["event"] == "ended":
            job.ended = event["time"]
        # states and reasons of another version are unknown, and no errors
        found = None if kind is None else _KINDS.get(kind, ReasonKind.UNKNOWN)
        job.processes[index] = values.evolve(
            job.processes[index],
            pid=event.get("pid", job.processes[index].pid),
            state=_STATES.get(event["state"], JobState.UNKNOWN),
            reason=None if found is None else Reason(found, event["number"]),
            exit_code=event["exit_code"],
            message=event["message"],
            log_tail=tuple(event["log_tail"]),
            peak_memory=event["peak_memory"],
        )
