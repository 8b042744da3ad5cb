"""A job as it is entered in journals, and the status of a process that has ended."""

from __future__ import annotations

from fiber._agent.supervisor.jobs import report_exit
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
    report = report_exit(code << 8)
    return ProcessStatus(
        index=index,
        state=report.state,
        pid=pid,
        reason=report.reason,
        exit_code=report.exit_code,
        message=report.message,
        log_tail=("last words",),
        peak_memory=5,
    )
