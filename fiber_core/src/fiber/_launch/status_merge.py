"""What a job's supervisor and its platform say of it, brought together; pure.

The supervisor knows how processes ended; the platform knows how the whole ended. A platform's word
counts where the supervisor cannot say any more.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence

from fiber._base import values
from fiber._version import __version__
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["diagnose", "during", "lost", "of_platform", "taken_away", "with_host"]

#: exit codes above this one mean that a signal ended the first process
_SIGNALLED = 128
_HIGHEST = _SIGNALLED + 64

_NO_FIBER = re.compile(r"No module named '?(fiber[\w.]*)'?|ModuleNotFoundError: .*'(fiber[\w.]*)'")
_NO_PYTHON = re.compile(
    r"(python[\d.]*)['\"]?: .*not found|\"(python[\d.]*)\": executable file not found"
    r"|(?:No such file or directory).*\b(python[\d.]*)|\b(python[\d.]*)\b.*No such file or directory"
)


def during(reported: JobStatus | None, platform: JobStatus) -> JobStatus:
    """The status of a job that runs.

    Args:
        reported: what its supervisor said last, if anything.
        platform: what the platform says; its one process is the supervisor, and nobody's affair.
    """
    if reported is None:
        return values.evolve(platform, processes=())
    if platform.state is JobState.SUSPENDED:
        stopped = [
            p
            if p.state.is_terminal
            else values.evolve(
                p, state=JobState.SUSPENDED, reason=platform.reason, message=platform.message
            )
            for p in reported.processes
        ]
        return values.evolve(platform, processes=tuple(stopped))
    if platform.state is JobState.UNKNOWN:
        return values.evolve(platform, processes=reported.processes)
    draining = reported.draining or platform.draining
    return values.evolve(with_host(reported, platform.host), draining=draining)


def with_host(status: JobStatus, host: str | None) -> JobStatus:
    """The same with the platform's name of the host, where it has one."""
    return values.evolve(status, host=host) if host else status


def taken_away(
    reported: JobStatus, platform: JobStatus | None, *, asked: Collection[int] = ()
) -> JobStatus:
    """A report of a job whose place the platform takes away: that is why signals ended it.

    Args:
        reported: what its supervisor says.
        platform: what the platform said last, if anything.
        asked: signals that were sent to the job from here.
    """
    why = None if platform is None else platform.reason
    if platform is None or why is None or why.counts_as_attempt:
        return reported
    taken = {signal.SIGTERM, signal.SIGKILL} - set(asked)

    def seen(one: ProcessStatus) -> ProcessStatus:
        reason = one.reason
        by_signal = reason is not None and reason.kind is ReasonKind.SIGNAL
        if not (by_signal and reason is not None and reason.number in taken):
            return one
        return values.evolve(one, reason=why, message=platform.message or one.message)

    processes = tuple(seen(one) for one in reported.processes)
    if processes == reported.processes:
        return reported
    message = platform.message or reported.message
    return values.evolve(reported, reason=why, message=message, processes=processes)


def of_platform(
    platform: JobStatus, reported: JobStatus | None, *, asked: Collection[int] = ()
) -> JobStatus:
    """The end of a job whose supervisor has not told of it.

    Args:
        platform: a terminal status.
        reported: what the supervisor said last, if anything.
        asked: signals that were sent to the job.
    """
    code, reason = platform.exit_code, platform.reason
    if code is not None and _SIGNALLED < code <= _HIGHEST:
        # what a supervisor, and a shell, make of an end by a signal
        code = _SIGNALLED - code
        if reason is None or reason.kind in (ReasonKind.EXIT, ReasonKind.UNKNOWN):
            reason = Reason(ReasonKind.SIGNAL, -code)
    ends = [n for n in (signal.SIGKILL, signal.SIGTERM) if n in asked]
    if code is None and ends:
        # the platform took it away before it ran
        code = -int(ends[0])
        reason = reason or Reason(ReasonKind.SIGNAL, -code)
    message = platform.message
    ended = [p for p in platform.processes if p.log_tail]
    tail = ended[0].log_tail if ended else ()
    processes = tuple(
        p
        if p.state.is_terminal
        else values.evolve(
            p,
            state=JobState.FAILED,
            reason=reason,
            exit_code=code,
            message=message or "lost with its supervisor",
            log_tail=tail,
        )
        for p in (() if reported is None else reported.processes)
    )
    host = platform.host or (None if reported is None else reported.host)
    if processes and processes[0].state.is_terminal:
        code = processes[0].exit_code
    state = platform.state
    if reported is not None and any(p.state is JobState.FAILED for p in processes):
        state = JobState.FAILED
    return values.evolve(
        platform,
        state=state,
        exit_code=code,
        reason=reason,
        host=host,
        processes=processes,
    )


def lost(reported: JobStatus | None, reason: Reason, *, host: str, words: str) -> JobStatus:
    """The end of a job that is given up: nobody can tell how it ended.

    Args:
        reported: what was known of it last, if anything.
        reason: why it is given up.
        host: where it was; "" where that is not known.
        words: the same for people.
    """
    before: Sequence[ProcessStatus] = () if reported is None else reported.processes
    processes = tuple(
        p
        if p.state.is_terminal
        else values.evolve(p, state=JobState.FAILED, reason=reason, message=words)
        for p in before
    )
    return JobStatus(
        state=JobState.FAILED,
        reason=reason,
        message=words,
        host=host or None,
        processes=processes,
    )


def diagnose(status: JobStatus, tail: Sequence[str]) -> str:
    """Why a job never came up, in a sentence that tells what to do.

    Args:
        status: its end, as the platform tells of it.
        tail: the last lines that it wrote.
    """
    where = status.host or "the job's host"
    text = "\n".join((*tail, status.message))
    fiber = _NO_FIBER.search(text)
    if fiber is not None:
        return (
            f"fiber is not installed in the Python of {where}; install the same version there "
            f"(in its image, where it has one): pip install 'fiber-core=={__version__}'"
        )
    python = _NO_PYTHON.search(text)
    if python is not None:
        name = next(group for group in python.groups() if group)
        return f"there is no {name} on {where}; install Python and fiber there"
    kind = None if status.reason is None else status.reason.kind
    if kind in (ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE, ReasonKind.START):
        return f"{status.reason}: {status.message}"
    what = status.message or f"it ended: {status.reason}"
    lines = "".join(f"\n  {line}" for line in tail[-10:])
    return f"it ended on {where} before it had reached its parent: {what}{lines}"
