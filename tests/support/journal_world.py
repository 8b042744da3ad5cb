"""A job as journals are told of it, and how its processes ended."""

from __future__ import annotations

from fiber._agent.supervisor.jobs import judge
from fiber.model import JobSpec, ProcessStatus

SPEC = JobSpec(
    run_id="0badcafe",
    name="näme",
    argv=("prog", "two words"),
    processes=2,
    private=b"secret",
    env={"TOKEN": "secret"},
)


def ended(index: int, pid: int | None, code: int) -> ProcessStatus:
    """The status of a process that exited with ``code``."""
    verdict = judge(code << 8)
    return ProcessStatus(
        index=index,
        state=verdict.state,
        pid=pid,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        message=verdict.message,
        log_tail=("last words",),
        peak_memory=5,
    )
