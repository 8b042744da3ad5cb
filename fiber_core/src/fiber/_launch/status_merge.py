"""Status of a remote job, merged from the reports of its supervisor and of its platform; pure.

The supervisor knows how processes ended; the platform knows how the whole ended, and counts where
the supervisor cannot report any more.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence

from fiber._base import values
from fiber._version import __version__
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["diagnose", "lost", "merge_ended", "merge_eviction", "merge_running", "with_host"]

#: exit codes above this one mean that a signal ended the first process
_SIGNALLED = 128
_HIGHEST = _SIGNALLED + 64

_NO_FIBER = re.compile(r"No module named '?(fiber[\w.]*)'?|ModuleNotFoundError: .*'(fiber[\w.]*)'")
_NO_PYTHON = re.compile(
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


def merge_eviction(
    reported: JobStatus, platform: JobStatus | None, *, sent_signals: Collection[int] = ()
) -> JobStatus:
    """Final status of a job that the platform evicted: the eviction is why signals ended it.

    Args:
        reported: status from its supervisor.
        platform: last status from the platform, if any.
        sent_signals: signals that this program sent to the job.
    """
    why = None if platform is None else platform.reason
    if platform is None or why is None or why.counts_as_attempt:
        return reported
    taken = {signal.SIGTERM, signal.SIGKILL} - set(sent_signals)

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


def diagnose(status: JobStatus, tail: Sequence[str]) -> str:
    """Sentence on why a job did not start, and what to do about it.

    Args:
        status: final status from the platform.
        tail: last lines of its output.
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
