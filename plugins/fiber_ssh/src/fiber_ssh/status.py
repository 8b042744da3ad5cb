"""Jobs and statuses from an agent's records of jobs; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiber.model import Job, JobState, JobStatus, ProcessStatus, Reason, ReasonKind

__all__ = ["job_of", "lost", "status_of"]

_STATES = {state.value: state for state in JobState}
_KINDS = {kind.value: kind for kind in ReasonKind}


def job_of(record: Mapping[str, Any], backend: str, host: str) -> Job:
    """The job of a record."""
    return Job(
        id=str(record["id"]),
        name=str(record["name"]),
        run_id=str(record["run"]),
        backend=backend,
        data={"host": host},
        argv=tuple(record["argv"]),
        submitted=record["submitted"],
    )


def status_of(record: Mapping[str, Any], host: str) -> JobStatus:
    """The status in a record; states and reasons of other versions are ``UNKNOWN``."""
    state = _STATES.get(record["state"], JobState.UNKNOWN)
    reason = None
    if record.get("reason"):
        kind, number = record["reason"]
        reason = Reason(_KINDS.get(kind, ReasonKind.UNKNOWN), number)
    code = record.get("code")
    processes: tuple[ProcessStatus, ...] = ()
    if record.get("pid"):
        processes = (
            ProcessStatus(
                index=0,
                state=state,
                pid=record["pid"],
                reason=reason,
                exit_code=code,
                peak_memory=record.get("peak"),
            ),
        )
    return JobStatus(
        state=state,
        reason=reason,
        exit_code=code,
        message=str(record.get("message") or ""),
        host=host,
        processes=processes,
    )


def lost(kind: ReasonKind, message: str, host: str | None) -> JobStatus:
    """The status of a job that failed without an exit status, as with a host that was lost."""
    return JobStatus(state=JobState.FAILED, reason=Reason(kind), message=message, host=host)
