"""Status of a job from what its batch system says, its marks, and what it was told; pure."""

from __future__ import annotations

import signal

from fiber._base import values
from fiber.backend_parts.batch.folder import Ended, Mark
from fiber.backend_parts.batch.system import Phase, Row
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["Told", "end_status", "live_status", "needs_word"]

_BY_SHELLS = 128


@values.frozen(kw_only=True)
class Told:
    """Request of this program that a job end."""

    #: the last signal that it was sent
    signum: int
    #: when, by the monotonic clock
    at: float
    #: when SIGKILL follows, or was sent
    kill_at: float


def live_status(row: Row | None, mark: Mark, grace: float | None, notice: float = 0.0) -> JobStatus:
    """Status of a job that has not ended.

    Args:
        row: what the system says; None before it was asked.
        mark: the job's marks.
        grace: seconds from SIGTERM to SIGKILL of what the system ends.
        notice: seconds before its time limit from which it is to get no more work.
    """
    phase = Phase.WAITING if row is None else row.phase
    host = mark.host or (None if row is None else row.host)
    message = "" if row is None else row.message
    if phase is Phase.SUSPENDED:
        return JobStatus(state=JobState.SUSPENDED, host=host, message=message)
    if mark.host is not None:
        process = ProcessStatus(index=0, state=JobState.RUNNING, pid=mark.pid)
        running = JobStatus(state=JobState.RUNNING, host=host, processes=(process,))
        if phase is Phase.ENDING:
            return values.evolve(running, draining=True, seconds_left=grace)
        left = None if row is None else row.seconds_left
        if left is not None and left <= notice:
            # the same number each time: it counts from when it is told first
            reason = Reason(ReasonKind.TIME_LIMIT)
            return values.evolve(running, draining=True, seconds_left=notice, reason=reason)
        return running
    if phase is Phase.WAITING:
        return JobStatus(state=JobState.PENDING, message=message)
    return JobStatus(
        state=JobState.PENDING,
        is_starting=phase is Phase.PLACED,
        host=host,
        message=f"on {host or 'its node'}",
    )


def needs_word(ended: Ended, told: Told | None) -> bool:
    """True where the system may know why a program ended: a signal ended it that this program did not send."""
    if told is not None:
        return False
    return ended.code < 0 or ended.code - _BY_SHELLS in {signal.SIGTERM, signal.SIGKILL}


def end_status(title: str, row: Row | None, mark: Mark, told: Told | None) -> JobStatus:
    """Status of a job that has ended.

    Args:
        title: the system's name.
        row: what the system says; None where it no longer knows the job.
        mark: the job's marks.
        told: what it was told by this program.
    """
    ended = mark.ended
    host = mark.host or (None if row is None else row.host)
    if ended is None and (row is None or row.phase is not Phase.ENDED):
        if told is not None:
            return _ended(-told.signum, Reason(ReasonKind.SIGNAL, told.signum), "", host, mark)
        message = f"{title} no longer knows it, and nothing was written about its end"
        return _ended(None, Reason(ReasonKind.UNKNOWN), message, host, mark)
    code = ended.code if ended is not None else row.exit_code if row is not None else None
    reason = None if row is None else row.reason
    message = "" if row is None else row.message
    if reason is not None and reason.kind is ReasonKind.CANCELLED and told is not None:
        reason = None
        if ended is None:
            code = -told.signum
    if code == 0 and (ended is not None or reason is None):
        # whatever became of it, its program was done
        return _ended(0, None, "", host, mark)
    if code == 0:
        # of a program that was cut off, or never ran
        code = None
    if reason is None:
        message = ended.message if ended is not None else ""
        reason = ended.reason if ended is not None else _reason(code)
    return _ended(code, reason, message, host, mark)


def _reason(code: int | None) -> Reason:
    if code is None:
        return Reason(ReasonKind.UNKNOWN)
    return Reason(ReasonKind.SIGNAL, -code) if code < 0 else Reason(ReasonKind.EXIT, code)


def _ended(
    code: int | None, reason: Reason | None, message: str, host: str | None, mark: Mark
) -> JobStatus:
    state = JobState.SUCCEEDED if code == 0 and reason is None else JobState.FAILED
    processes: tuple[ProcessStatus, ...] = ()
    if mark.pid is not None:
        processes = (
            ProcessStatus(index=0, state=state, pid=mark.pid, reason=reason, exit_code=code),
        )
    return JobStatus(
        state=state,
        reason=reason,
        exit_code=code,
        message=message,
        host=host,
        processes=processes,
    )
