"""Job table of a supervisor: the processes of each job and their statuses; pure.

It also has the meaning of a process's end: wait status to state, reason and a sentence.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from fiber._base import values
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

#: submitter of a job: job id and index of a forked process, or None for the master
Owner = tuple[str, int] | None


@values.define(kw_only=True)
class JobEntry:
    """Entry of one job."""

    #: its id
    id: str
    #: its submitter
    owner: Owner
    #: its processes by index
    processes: list[ProcessStatus]
    #: reason why it waits for devices; "" otherwise
    waiting: str = ""
    #: True where it could not be started: no status of it is reported
    refused: bool = False
    #: signals that were sent to it on request
    sent_signals: set[int] = values.field(factory=set)
    #: what its end is reported as where it was killed for a reason of the supervisor's own
    verdict: ExitReport | None = None
    #: messages about it that wait for the moment in which its submitter may know of it
    held: list[object] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes that were started and have not ended, by index."""
        return tuple(p.pid for p in self.processes if p.pid is not None and not p.state.is_terminal)


class JobTable:
    """Table of a supervisor's jobs, until they have ended and are removed by :meth:`forget`.

    Args:
        host: host name in statuses.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._jobs: dict[str, JobEntry] = {}
        self._by_pid: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobEntry]:
        return iter(tuple(self._jobs.values()))

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def __getitem__(self, job_id: str) -> JobEntry:
        return self._jobs[job_id]

    def get(self, job_id: str) -> JobEntry | None:
        """The entry of a job, if it is known."""
        return self._jobs.get(job_id)

    def find(self, pid: int) -> tuple[JobEntry, int] | None:
        """Job of a process, and its index within it; None for other processes."""
        place = self._by_pid.get(pid)
        return None if place is None else (self._jobs[place[0]], place[1])

    def owned_by(self, owner: Owner) -> tuple[JobEntry, ...]:
        """Jobs that one channel submitted."""
        return tuple(job for job in self._jobs.values() if job.owner == owner)

    def add(self, job_id: str, *, owner: Owner, processes: int, waiting: str = "") -> JobEntry:
        """Add a job, none of whose processes runs yet."""
        pending = [ProcessStatus(index=i, state=JobState.PENDING) for i in range(processes)]
        entry = JobEntry(id=job_id, owner=owner, processes=pending, waiting=waiting)
        self._jobs[job_id] = entry
        return entry

    def started(self, job_id: str, index: int, pid: int) -> None:
        """Note that a process of a job was forked."""
        entry = self._jobs[job_id]
        entry.waiting = ""
        entry.processes[index] = values.evolve(
            entry.processes[index], state=JobState.RUNNING, pid=pid
        )
        self._by_pid[pid] = (job_id, index)

    def stopped(self, pid: int, signum: int) -> JobEntry | None:
        """Note that a process was stopped; returns its job if that changed its status."""
        message = f"stopped by {signal_name(signum)}"
        reason = Reason(ReasonKind.SIGNAL, signum)
        return self._change(pid, state=JobState.SUSPENDED, reason=reason, message=message)

    def continued(self, pid: int) -> JobEntry | None:
        """Note that a stopped process runs again; returns its job if that changed its status."""
        return self._change(pid, state=JobState.RUNNING, reason=None, message="")

    def ended(
        self,
        pid: int,
        report: ExitReport,
        *,
        log_tail: Sequence[str] = (),
        peak_memory: int | None = None,
        noted: bytes | None = None,
    ) -> JobEntry | None:
        """Note that a process ended and was reaped; returns its job if it belongs to one."""
        entry = self._change(
            pid,
            state=report.state,
            reason=report.reason,
            exit_code=report.exit_code,
            message=report.message,
            log_tail=tuple(log_tail),
            peak_memory=peak_memory,
            noted=noted,
        )
        self._by_pid.pop(pid, None)
        return entry

    def abandoned(self, job_id: str, report: ExitReport) -> JobEntry:
        """Give processes of a job that were not started a final status: they never will be."""
        entry = self._jobs[job_id]
        entry.waiting = ""
        entry.processes = [
            values.evolve(
                process,
                state=report.state,
                reason=report.reason,
                exit_code=report.exit_code,
                message=report.message,
            )
            if process.pid is None
            else process
            for process in entry.processes
        ]
        return entry

    def status(self, job_id: str) -> JobStatus:
        """Present status of a job."""
        entry = self._jobs[job_id]
        if entry.waiting:
            return JobStatus(
                state=JobState.PENDING,
                reason=Reason(ReasonKind.UNSCHEDULABLE),
                message=entry.waiting,
                host=self._host,
                processes=tuple(entry.processes),
            )
        return combine(entry.processes, host=self._host)

    def forget(self, job_id: str) -> None:
        """Drop a job that has ended, or was refused."""
        entry = self._jobs.pop(job_id)
        for process in entry.processes:
            if process.pid is not None and self._by_pid.get(process.pid, ("", 0))[0] == job_id:
                del self._by_pid[process.pid]

    def _change(self, pid: int, **changes: Any) -> JobEntry | None:
        place = self._by_pid.get(pid)
        if place is None:
            return None
        entry = self._jobs[place[0]]
        before = entry.processes[place[1]]
        if before.state.is_terminal:
            return None
        after = values.evolve(before, **changes)
        entry.processes[place[1]] = after
        return None if after == before else entry


def combine(processes: Sequence[ProcessStatus], *, host: str | None) -> JobStatus:
    """The status of a job from those of its processes.

    A job has ended when all of them have; it failed if any failed, for the reason of the first
    that did. The exit code is its first process's. It is suspended when all that live are.
    """
    living = [p for p in processes if not p.state.is_terminal]
    if not living:
        failed = next((p for p in processes if p.state is JobState.FAILED), None)
        source = failed or processes[0]
        return JobStatus(
            state=JobState.SUCCEEDED if failed is None else JobState.FAILED,
            reason=source.reason,
            exit_code=processes[0].exit_code,
            message=source.message,
            host=host,
            processes=tuple(processes),
        )
    first = living[0]
    if all(p.state is JobState.SUSPENDED for p in living):
        state = JobState.SUSPENDED
    elif any(p.state is not JobState.PENDING for p in living):
        state = JobState.RUNNING
    else:
        state = JobState.PENDING
    suspended = state is JobState.SUSPENDED
    return JobStatus(
        state=state,
        reason=first.reason if suspended else None,
        message=first.message if suspended else "",
        host=host,
        processes=tuple(processes),
    )


#: exit code of a process that never came to run what was asked for, as shells have it: because the
#: program is there and cannot be run, or for another reason
NOT_RUNNABLE, NOT_STARTED = 126, 127

_MB = 1 << 20


@values.frozen(kw_only=True)
class ExitReport:
    """End of a process: state, reason, exit code and a sentence."""

    #: SUCCEEDED or FAILED
    state: JobState
    #: why
    reason: Reason
    #: exit code, or minus the signal number
    exit_code: int
    #: one sentence for people
    message: str


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 77`` for numbers without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def report_exit(
    wait_status: int,
    *,
    peak_memory: int | None = None,
    memory_limit: int | None = None,
    out_of_memory: bool = False,
    requested: bool = False,
    failure: str = "",
) -> ExitReport:
    """Report of a process's end from its wait status.

    Args:
        wait_status: as ``os.wait4`` gives it.
        peak_memory: most resident bytes it had.
        memory_limit: bytes that its job may have, if limited.
        out_of_memory: True where a cgroup proves it.
        requested: True where the supervisor sent the signal that ended it.
        failure: why it never came to run the program asked for.
    """
    code = os.waitstatus_to_exitcode(wait_status)
    if failure:
        reason = Reason(ReasonKind.START)
        return ExitReport(state=JobState.FAILED, reason=reason, exit_code=code, message=failure)
    if code == 0:
        reason = Reason(ReasonKind.EXIT, 0)
        return ExitReport(state=JobState.SUCCEEDED, reason=reason, exit_code=0, message="ended")
    if code > 0:
        return ExitReport(
            state=JobState.FAILED,
            reason=Reason(ReasonKind.EXIT, code),
            exit_code=code,
            message=f"ended with exit code {code}",
        )
    if out_of_memory:
        return ExitReport(
            state=JobState.FAILED,
            reason=Reason(ReasonKind.OOM),
            exit_code=code,
            message=_out_of_memory(peak_memory, memory_limit),
        )
    message = f"killed by {signal_name(-code)}"
    if requested:
        message += ", as asked"
    elif -code == signal.SIGKILL:
        message += f", cause unknown{_size(peak_memory, memory_limit)}"
    elif os.WCOREDUMP(wait_status):
        message += ", a core was dumped"
    return ExitReport(
        state=JobState.FAILED,
        reason=Reason(ReasonKind.SIGNAL, -code),
        exit_code=code,
        message=message,
    )


def ended_before_start(signum: int) -> ExitReport:
    """Report of a process whose job was ended before it was started."""
    return ExitReport(
        state=JobState.FAILED,
        reason=Reason(ReasonKind.SIGNAL, int(signum)),
        exit_code=-int(signum),
        message="ended as asked, before it was started",
    )


def not_started(words: str) -> ExitReport:
    """Report of a process that could not be started."""
    return ExitReport(
        state=JobState.FAILED,
        reason=Reason(ReasonKind.START),
        exit_code=NOT_STARTED,
        message=words,
    )


def _out_of_memory(peak: int | None, limit: int | None) -> str:
    text = "out of memory"
    if limit is not None:
        text += f": its limit is {limit // _MB} MB"
    if peak is not None:
        text += f"{',' if limit is not None else ':'} its peak was {peak // _MB} MB"
    return text


def _size(peak: int | None, limit: int | None) -> str:
    if peak is None:
        return ""
    text = f"; its largest resident size was {peak // _MB} MB"
    return text if limit is None else f"{text} of {limit // _MB} MB"
