"""``fiber ps``: lists jobs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from fiber.cli.errors import note
from fiber.cli.options import BackendCommand, backend_option, json_option

if TYPE_CHECKING:
    from fiber.cli.show import Listed

__all__ = ["command"]

_HEADERS = ("RUN", "JOB", "NAME", "STATE", "PID", "HOST", "AGE", "PROGRAM")
_STYLES = {
    "running": "green",
    "pending": "yellow",
    "starting": "yellow",
    "suspended": "yellow",
    "unknown": "yellow",
    "failed": "red",
}
#: what is said of one job that has a cause, and of more
_FAILED, _STARTING, _WAITING = (
    ("failed", "failed"),
    ("is starting", "are starting"),
    ("waits", "wait"),
)


@click.command("ps", cls=BackendCommand, short_help="List jobs.")
@click.option("-a", "--all", "everything", is_flag=True, help="List jobs that have ended, too.")
@json_option
@backend_option
def command(everything: bool, as_json: bool, backend: str | None) -> None:
    """List the jobs of all your runs on the backend, oldest first.

    Why jobs wait, or could not run, is said below the table, on stderr, in the words of their platform.
    """
    from fiber.cli import show
    from fiber.cli.session import Session
    from fiber.cli.show import list_jobs

    with Session.load(backend).open_backend() as loaded:
        listed = [
            item for item in list_jobs(loaded) if everything or not item.status.state.is_terminal
        ]
    if as_json:
        show.as_json([_data(item) for item in listed])
    else:
        now = time.time()
        show.table(_HEADERS, [_row(item, now) for item in listed], styles=_STYLES)
        for line in _causes(listed):
            note(line)


def _row(item: Listed, now: float) -> tuple[str, ...]:
    from fiber.cli.show import age

    job, status = item.job, item.status
    state = "starting" if status.is_starting else status.state.value
    if status.reason is not None and status.exit_code != 0:
        state = f"{state} {status.reason}"
    pids = [str(process.pid) for process in status.processes if process.pid is not None]
    return (
        job.run_id,
        job.id,
        job.name,
        state,
        ",".join(pids),
        status.host or "",
        "" if job.submitted is None else age(now - job.submitted),
        shlex.join(job.argv),
    )


def _causes(listed: Iterable[Listed]) -> Iterator[str]:
    """Yield a line for each cause for which jobs wait or failed, where no exit code tells it.

    Many jobs mostly have the same.
    """
    from fiber.model import JobState, ReasonKind

    plain = {None, ReasonKind.EXIT, ReasonKind.SIGNAL}
    jobs: dict[tuple[tuple[str, str], str], list[str]] = {}
    for item in listed:
        status = item.status
        kind = None if status.reason is None else status.reason.kind
        words = " ".join(status.message.split())
        failed = status.state is JobState.FAILED and kind not in plain
        if words and (failed or status.state is JobState.PENDING):
            one_or_more = _FAILED if failed else _STARTING if status.is_starting else _WAITING
            jobs.setdefault((one_or_more, words), []).append(item.job.id)
    for ((one, more), words), (first, *others) in jobs.items():
        yield (
            f"{first} and {len(others)} more {more}: {words}"
            if others
            else f"{first} {one}: {words}"
        )


def _data(item: Listed) -> dict[str, Any]:
    job, status = item.job, item.status
    return {
        "backend": job.backend,
        "run": job.run_id,
        "job": job.id,
        "name": job.name,
        "state": status.state.value,
        "is_starting": status.is_starting,
        "reason": None if status.reason is None else str(status.reason),
        "exit_code": status.exit_code,
        "message": status.message,
        "host": status.host,
        "submitted": job.submitted,
        "argv": list(job.argv),
        "processes": [
            {
                "index": process.index,
                "pid": process.pid,
                "state": process.state.value,
                "exit_code": process.exit_code,
            }
            for process in status.processes
        ],
    }
