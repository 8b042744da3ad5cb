"""Jobs and statuses from an agent's records of jobs; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiber._agent.supervisor.jobs import combine
from fiber._agent.supervisor.journal import JournaledJob
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind

__all__ = ["lost", "read_record"]


def read_record(record: Mapping[str, Any], backend: str, host: str) -> tuple[Job, JobStatus]:
    """The job of a record, and how it stands.

    Raises:
        ValueError: the record makes no sense.
    """
    job = JournaledJob.from_events(record["events"])
    return job.job(backend, host=host), combine(job.processes, host=host)


def lost(kind: ReasonKind, message: str, host: str | None) -> JobStatus:
    """The status of a job that failed without an exit status, as with a host that was lost."""
    return JobStatus(state=JobState.FAILED, reason=Reason(kind), message=message, host=host)
