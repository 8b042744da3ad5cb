"""Rows of squeue as rows of a batch system; pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from fiber.backend_parts.batch.names import run_of
from fiber.backend_parts.batch.system import Phase, Row
from fiber.model import Reason, ReasonKind

__all__ = ["END", "FORMAT", "counts_of", "read_allocations", "read_rows", "seconds_of"]

_FIELDS = ("JobArrayID", "State", "BatchHost", "Name", "exit_code", "TimeLeft", "JobID", "Reason")
#: what ends a field
END = "\x1f"
#: format of squeue; a reason, which may have anything in it, comes last
FORMAT = ",".join(f"{name}:{END}" for name in _FIELDS)

_PHASES = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"), Phase.WAITING),
    **dict.fromkeys(("CONFIGURING", "RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT"), Phase.PLACED),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), Phase.SUSPENDED),
    "COMPLETING": Phase.ENDING,
}
_REASONS = {
    "BOOT_FAIL": ReasonKind.NODE_LOST,
    "CANCELLED": ReasonKind.CANCELLED,
    "DEADLINE": ReasonKind.TIME_LIMIT,
    "NODE_FAIL": ReasonKind.NODE_LOST,
    "OUT_OF_MEMORY": ReasonKind.OOM,
    "PREEMPTED": ReasonKind.PREEMPTED,
    "REVOKED": ReasonKind.CANCELLED,
    "TIMEOUT": ReasonKind.TIME_LIMIT,
}
#: words of Slurm that say nothing, or what is message better by the exit code
_EMPTY = {"", "None", "(null)", "NonZeroExitCode", "JobLaunchFailure", "RaisedSignal"}
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


def read_rows(output: str) -> Iterator[Row]:
    """The rows of jobs that Fiber submitted.

    Args:
        output: of ``squeue --noheader --array --Format=FORMAT``.
    """
    return (row for _, row in _read(output) if row.run_id)


def read_allocations(output: str) -> Mapping[str, Row]:
    """The rows of all jobs by the ids that Slurm gives them in their environment.

    Args:
        output: see :func:`read_rows`.
    """
    return dict(_read(output))


def _read(output: str) -> Iterator[tuple[str, Row]]:
    for line in output.splitlines():
        found = [word.strip() for word in line.split(END)]
        if len(found) < len(_FIELDS):
            continue
        job_id, state, host, name, raw, left, inner, why = found[: len(_FIELDS)]
        phase = _PHASES.get(state, Phase.ENDED)
        kind = _REASONS.get(state)
        row = Row(
            id=job_id,
            phase=phase,
            run_id=run_of(name) or "",
            host=None if host in {"", "n/a", "(null)"} else host,
            message=_message(phase, state, why, kind),
            exit_code=_exit_code(raw) if phase is Phase.ENDED else None,
            reason=None if kind is None else Reason(kind),
            seconds_left=seconds_of(left),
        )
        yield inner, row


def _message(phase: Phase, state: str, why: str, kind: ReasonKind | None) -> str:
    # of what is cancelled while it waits there are still those of the queue
    words = "" if why in _EMPTY or kind is ReasonKind.CANCELLED else why
    if phase is Phase.WAITING:
        return f"in the queue: {words}" if words else "in the queue"
    if phase is Phase.ENDED:
        # where there is a reason, its name stands before this message
        state = "" if kind is not None and kind.name == state else state
        message = " ".join(filter(None, (state, f"({words})" if words and state else words)))
        return f"Slurm: {message}" if message else "by Slurm"
    return ""


def _exit_code(raw: str) -> int | None:
    """Exit code of a script, or minus its signal, from a wait status."""
    if not raw.isdigit():
        return None
    try:
        return os.waitstatus_to_exitcode(int(raw) & 0xFFFF)
    except ValueError:
        return None


def seconds_of(text: str) -> float | None:
    """Seconds of ``1-02:03:04``; None where there is no limit."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def counts_of(gres: str) -> dict[str, int]:
    """Devices by kind: ``gpu:a100:4(S:0-1),gpu:2`` has six."""
    found: dict[str, int] = {}
    for word in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, _, rest = word.strip().partition(":")
        number = rest.rpartition(":")[2]
        if kind and number.isdigit():
            found[kind] = found.get(kind, 0) + int(number)
    return found
