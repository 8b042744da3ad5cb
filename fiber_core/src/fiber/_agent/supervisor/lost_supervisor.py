"""What becomes of jobs whose supervisor is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

from fiber._base import values
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["accepted", "kill", "lost"]


def accepted(pids: Sequence[int]) -> JobStatus:
    """What is known of a job that was accepted and of which nothing more was heard."""
    return JobStatus(
        state=JobState.PENDING,
        processes=tuple(
            ProcessStatus(index=index, state=JobState.RUNNING, pid=pid)
            for index, pid in enumerate(pids)
        ),
    )


def kill(status: JobStatus) -> None:
    """SIGKILL to the groups of a job's processes, which nobody else can end any more."""
    for process in status.processes:
        if process.pid is not None and not process.state.is_terminal:
            for send in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    send(process.pid, signal.SIGKILL)


def lost(status: JobStatus, message: str) -> JobStatus:
    """The last status of a job that was lost."""
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
