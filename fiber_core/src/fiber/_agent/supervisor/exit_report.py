"""What the end of a process means: wait status to state, reason and a sentence; pure."""

from __future__ import annotations

import os
import signal

from fiber._base import values
from fiber.model import JobState, Reason, ReasonKind

__all__ = ["NOT_STARTED", "Verdict", "ended_early", "judge", "not_started", "signal_name"]

#: exit code of a process that never came to run what was asked for, as shells have it
NOT_STARTED = 127

_MB = 1 << 20


@values.frozen(kw_only=True)
class Verdict:
    """How a process ended."""

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


def judge(
    wait_status: int,
    *,
    peak_memory: int | None = None,
    memory_limit: int | None = None,
    out_of_memory: bool = False,
    asked: bool = False,
    failure: str = "",
) -> Verdict:
    """Judge the end of a process.

    Args:
        wait_status: as ``os.wait4`` gives it.
        peak_memory: most resident bytes it had.
        memory_limit: bytes that its job may have, if limited.
        out_of_memory: True where a cgroup proves it.
        asked: True where the supervisor sent the signal that ended it.
        failure: why it never came to run the program asked for.
    """
    code = os.waitstatus_to_exitcode(wait_status)
    if failure:
        reason = Reason(ReasonKind.START)
        return Verdict(state=JobState.FAILED, reason=reason, exit_code=code, message=failure)
    if code == 0:
        reason = Reason(ReasonKind.EXIT, 0)
        return Verdict(state=JobState.SUCCEEDED, reason=reason, exit_code=0, message="ended")
    if code > 0:
        return Verdict(
            state=JobState.FAILED,
            reason=Reason(ReasonKind.EXIT, code),
            exit_code=code,
            message=f"ended with exit code {code}",
        )
    if out_of_memory:
        return Verdict(
            state=JobState.FAILED,
            reason=Reason(ReasonKind.OOM),
            exit_code=code,
            message=_out_of_memory(peak_memory, memory_limit),
        )
    message = f"killed by {signal_name(-code)}"
    if asked:
        message += ", as asked"
    elif -code == signal.SIGKILL:
        message += f", cause unknown{_size(peak_memory, memory_limit)}"
    elif os.WCOREDUMP(wait_status):
        message += ", a core was dumped"
    return Verdict(
        state=JobState.FAILED,
        reason=Reason(ReasonKind.SIGNAL, -code),
        exit_code=code,
        message=message,
    )


def ended_early(signum: int) -> Verdict:
    """The end of a process whose job was ended before it was started."""
    return Verdict(
        state=JobState.FAILED,
        reason=Reason(ReasonKind.SIGNAL, int(signum)),
        exit_code=-int(signum),
        message="ended as asked, before it was started",
    )


def not_started(words: str) -> Verdict:
    """The end of a process that the system would not start."""
    return Verdict(
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
