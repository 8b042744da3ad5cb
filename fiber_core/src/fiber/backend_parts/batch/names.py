"""Names of jobs in the queue of a batch system, by which a run's are found again; pure."""

from __future__ import annotations

__all__ = ["job_name", "run_of"]

_PREFIX = "fiber-"
#: jobs that outlive their program have a name of their own, so that a guard leaves them alone
_DETACHED = "-detached"


def job_name(run_id: str, *, detached: bool = False) -> str:
    """Name of the jobs of a run in their batch system."""
    return f"{_PREFIX}{run_id}{_DETACHED if detached else ''}"


def run_of(name: str) -> str | None:
    """Run of a job with this name; None where it is not Fiber's."""
    if not name.startswith(_PREFIX):
        return None
    return name.removeprefix(_PREFIX).removesuffix(_DETACHED)
