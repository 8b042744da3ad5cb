"""Jobs as commands list them, and the one that a word on the command line means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from fiber.exceptions import FiberError, UnknownJobError

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.model import Job, JobStatus

__all__ = ["Listed", "find_job", "list_jobs"]

#: candidates that an ambiguity names
_MOST = 10


@attrs.frozen
class Listed:
    """A job with its status at the time it was listed."""

    #: the job
    job: Job
    #: its status
    status: JobStatus


def list_jobs(backend: Backend, run_id: str | None = None) -> list[Listed]:
    """The jobs that exist, oldest first."""
    found = backend.list(run_id)
    try:
        statuses = backend.status(found)
        listed = [Listed(job, status) for job, status in zip(found, statuses, strict=True)]
    except UnknownJobError:
        # one was removed meanwhile, and the platform does not say which
        listed = [item for job in found for item in _ask(backend, job)]
    return sorted(listed, key=lambda item: (item.job.submitted or 0.0, item.job.id))


def _ask(backend: Backend, job: Job) -> Iterable[Listed]:
    try:
        yield Listed(job, backend.status([job])[0])
    except UnknownJobError:
        return


def find_job(jobs: Sequence[Job], word: str) -> Job:
    """The job that a word means: its id, else the beginning of one id, else its name.

    Raises:
        UnknownJobError: no job is meant.
        FiberError: several are.
    """
    for fits in (
        [job for job in jobs if job.id == word],
        [job for job in jobs if job.id.startswith(word)],
        [job for job in jobs if job.name == word],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            told = ", ".join(f"{job.id} ({job.name})" for job in fits[:_MOST])
            more = f" and {len(fits) - _MOST} more" if len(fits) > _MOST else ""
            msg = f"{word!r} may mean {len(fits)} jobs: {told}{more}; give more of the id"
            raise FiberError(msg)
    msg = f"no job is {word!r}; 'fiber ps -a' lists those there are"
    raise UnknownJobError(msg)
