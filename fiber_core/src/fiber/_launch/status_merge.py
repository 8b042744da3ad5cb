"""Status of a remote job, merged from the reports of its supervisor and of its platform; pure.

The supervisor knows how processes ended; the platform knows how the whole ended, and counts where
the supervisor cannot report any more.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence

from fiber._agent.supervisor.jobs import signal_name
from fiber._base import values
from fiber._version import __version__
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = [
    "OF_PLATFORMS",
    "diagnose",
    "explain",
    "lost",
    "merge_ended",
    "merge_running",
    "process_of",
    "tells_why",
    "unexplained",
    "with_host",
    "with_reason",
]

#: reasons of an end that a platform alone can know; an exit code says nothing of them
OF_PLATFORMS = frozenset(
    {
        ReasonKind.OOM,
        ReasonKind.EVICTED,
        ReasonKind.PREEMPTED,
        ReasonKind.TIME_LIMIT,
        ReasonKind.CANCELLED,
        ReasonKind.NODE_LOST,
    }
)
#: reasons that say no more than how the supervisor ended
_UNTOLD = frozenset({ReasonKind.EXIT, ReasonKind.SIGNAL, ReasonKind.UNKNOWN})
_ENDING = frozenset({signal.SIGTERM, signal.SIGKILL})

#: exit codes above this one mean that a signal ended the first process
_SIGNALLED = 128
_HIGHEST = _SIGNALLED + 64

_NO_FIBER = r"No module named '?(fiber[\w.]*)'?|ModuleNotFoundError: .*'(fiber[\w.]*)'"
#: before it has reached its parent, a job imports nothing but Fiber and what Fiber needs
_NO_PACKAGE = r"No module named '?(\w+)[\w.]*'?"
_NO_PYTHON = (
    r"(python[\d.]*)['\"]?: .*not found|\"(python[\d.]*)\": executable file not found"
    r"|(?:No such file or directory).*\b(python[\d.]*)|\b(python[\d.]*)\b.*No such file or directory"
)


def merge_running(reported: JobStatus | None, platform: JobStatus) -> JobStatus:
    """Status of a job that runs.

    Args:
        reported: last status from its supervisor, if any.
        platform: status from the platform; its only process is the supervisor, and is left out.
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
    return values.evolve(
        with_host(reported, platform.host),
        draining=reported.draining or platform.draining,
        seconds_left=platform.seconds_left,
    )


def with_host(status: JobStatus, host: str | None) -> JobStatus:
    """Copy with the platform's name of the host, where it has one."""
    return values.evolve(status, host=host) if host else status


def tells_why(status: JobStatus, sent_signals: Collection[int]) -> bool:
    """True for a platform's status with a reason that a supervisor cannot know.

    Args:
        status: status from the platform.
        sent_signals: signals that this program sent to the job. Where it was to end, a cancellation
            is our own request.
    """
    kind = None if status.reason is None else status.reason.kind
    if kind is ReasonKind.CANCELLED:
        return _ENDING.isdisjoint(sent_signals)
    return kind in OF_PLATFORMS


def unexplained(reported: JobStatus, *, sent_signals: Collection[int]) -> set[int]:
    """Indexes of the processes that ended by a SIGTERM or SIGKILL that this program did not send."""
    return {one.index for one in reported.processes if _strange_signal(one, sent_signals)}


def explain(
    reported: JobStatus, why: JobStatus | None, *, sent_signals: Collection[int] = ()
) -> JobStatus:
    """Status from a supervisor, with the platform's reason for processes that signals ended.

    Args:
        reported: status from the supervisor.
        why: status from the platform that :func:`tells_why`, if there was any.
        sent_signals: signals that this program sent to the job.
    """
    if why is None or not tells_why(why, sent_signals):
        return reported

    def seen(one: ProcessStatus) -> ProcessStatus:
        signum = _strange_signal(one, sent_signals)
        is_oom = why.reason is not None and why.reason.kind is ReasonKind.OOM
        if not signum or (is_oom and signum != signal.SIGKILL):
            return one
        words = f"killed by {signal_name(signum)}: {_why(why)}"
        return values.evolve(one, reason=why.reason, message=words)

    processes = tuple(seen(one) for one in reported.processes)
    if processes == reported.processes:
        return reported
    changed = values.evolve(reported, processes=processes)
    if not reported.state.is_terminal:
        return changed
    first = next(one for one, before in zip(processes, reported.processes, strict=True) if one != before)  # fmt: skip
    return values.evolve(changed, reason=why.reason, message=first.message)


def with_reason(platform: JobStatus, why: JobStatus | None) -> JobStatus:
    """A platform's final status, with the reason that it gave before where this one has none.

    Args:
        platform: the final status.
        why: the last status that :func:`tells_why`, if there was any.
    """
    known = platform.reason is not None and platform.reason.kind not in _UNTOLD
    if why is None or known or platform.exit_code == 0:
        return platform
    return values.evolve(platform, reason=why.reason, message=why.message or platform.message)


def process_of(status: JobStatus, index: int) -> ProcessStatus:
    """The status of one process of a job, from the job's own where it has none."""
    for process in status.processes:
        if process.index == index and (process.state.is_terminal or not status.state.is_terminal):
            return process
    # the backend reports the job alone
    return ProcessStatus(
        index=index,
        state=status.state,
        reason=status.reason,
        exit_code=status.exit_code,
        message=status.message,
    )


def _strange_signal(one: ProcessStatus, sent_signals: Collection[int]) -> int:
    """The signal that ended a process and that this program did not send; 0 for none."""
    reason = one.reason
    if reason is None or reason.kind is not ReasonKind.SIGNAL or not one.state.is_terminal:
        return 0
    number = reason.number or 0
    return number if number in _ENDING and number not in sent_signals else 0


def _why(status: JobStatus) -> str:
    return f"{status.reason}: {status.message}" if status.message else str(status.reason)


def merge_ended(
    platform: JobStatus, reported: JobStatus | None, *, sent_signals: Collection[int] = ()
) -> JobStatus:
    """Final status of a job whose supervisor has not reported it.

    Args:
        platform: a terminal status.
        reported: last status from the supervisor, if any.
        sent_signals: signals that were sent to the job.
    """
    code, reason = platform.exit_code, platform.reason
    if code is not None and _SIGNALLED < code <= _HIGHEST:
        # exit code of supervisors, and shells, after an end by a signal
        code = _SIGNALLED - code
        if reason is None or reason.kind in (ReasonKind.EXIT, ReasonKind.UNKNOWN):
            reason = Reason(ReasonKind.SIGNAL, -code)
    ends = [n for n in (signal.SIGKILL, signal.SIGTERM) if n in sent_signals]
    if ends and reason is not None and reason.kind is ReasonKind.CANCELLED:
        # it was our own request that the platform carried out
        reason = Reason(ReasonKind.SIGNAL, ends[0] if code is None or code >= 0 else -code)
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
    """Final status of a job that is given up: how it ended is not known.

    Args:
        reported: last status, if any.
        reason: why it is given up.
        host: host it ran on; "" where that is not known.
        words: the reason as a sentence.
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


def diagnose(status: JobStatus, tail: Sequence[str], *, image: str | None = None) -> str:
    """Sentence on why a job did not start, and what to do about it.

    Args:
        status: final status from the platform.
        tail: last lines of its output.
        image: the image that was asked for, if any.
    """
    where = status.host or "the job's host"
    # what is installed there is a matter of the image, whichever host has run it
    system = f"image {image!r}" if image else where
    hint = "" if image else " (in its image, where it has one)"
    text = "\n".join((*tail, status.message))
    if re.search(_NO_FIBER, text) is not None:
        return (
            f"fiber is not installed in the Python of {system}; install the same version there"
            f"{hint}: pip install 'fiber-core=={__version__}'"
        )
    package = re.search(_NO_PACKAGE, text)
    if package is not None:
        # with the packages that it needs: pip adds those that are missing
        return (
            f"{package[1]}, which fiber needs, is not installed in the Python of {system}; install it "
            f"there{hint}: pip install 'fiber-core=={__version__}'"
        )
    python = re.search(_NO_PYTHON, text)
    if python is not None:
        name = next(group for group in python.groups() if group)
        return (
            f"there is no {name} {'in' if image else 'on'} {system}; install Python and fiber there"
        )
    kind = None if status.reason is None else status.reason.kind
    if kind in (ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE, ReasonKind.START):
        return f"{status.reason}: {status.message}"
    what = status.message or f"it ended: {status.reason}"
    lines = "".join(f"\n  {line}" for line in tail[-10:])
    return f"it ended on {where} before it had reached its parent: {what}{lines}"
