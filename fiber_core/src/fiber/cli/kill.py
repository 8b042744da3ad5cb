"""``fiber kill``: ends jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from fiber.cli.options import BackendCommand, backend_option
from fiber.exceptions import FiberError, UnknownJobError

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.cli.show import Listed
    from fiber.model import Job

__all__ = ["command"]

#: seconds that a platform may take to end a job that was killed
_PATIENCE = 15.0
#: seconds until jobs are ended that their run's events have not told of
_SEEN = 5.0


@click.command("kill", cls=BackendCommand, short_help="End jobs.")
@click.option("--run", metavar="RUN", help="All jobs of a run.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL.",
)
@click.option("--now", is_flag=True, help="SIGKILL at once.")
@backend_option
@click.argument("jobs", metavar="JOB...", nargs=-1)
def command(
    jobs: tuple[str, ...], run: str | None, grace: float, now: bool, backend: str | None
) -> None:
    """End each JOB: an id, the beginning of one, or a name. Returns when they have ended."""
    from fiber.cli.session import Session
    from fiber.cli.show import find_job, list_jobs

    if bool(jobs) == bool(run):
        msg = "name the jobs to end, or a run with --run"
        raise click.UsageError(msg)
    with Session.load(backend).look() as loaded:
        listed = {item.job.id: item for item in list_jobs(loaded)}
        known = [item.job for item in listed.values()]
        meant = _of_run(known, run) if run else [find_job(known, word) for word in jobs]
        _end(loaded, {job.id: listed[job.id] for job in meant}, 0.0 if now else grace, now=now)


def _of_run(jobs: list[Job], word: str) -> list[Job]:
    runs = sorted({job.run_id for job in jobs if job.run_id.startswith(word)})
    if len(runs) != 1:
        msg = f"no run is {word!r}; 'fiber ps -a' lists those there are"
        if runs:
            msg = f"{word!r} may mean {len(runs)} runs: {', '.join(runs)}; give more of the id"
        raise FiberError(msg)
    return [job for job in jobs if job.run_id == runs[0]]


def _end(backend: Backend, meant: dict[str, Listed], grace: float, *, now: bool) -> None:
    from fiber.cli.watch import Watcher

    left: dict[str, Job] = {}
    for job_id, item in meant.items():
        if item.status.state.is_terminal:
            click.echo(f"Ended before: {job_id}")
        else:
            left[job_id] = item.job
    # a job that is gone before its run is watched would be waited for in vain
    unseen = dict(left)
    watcher = Watcher(backend, *sorted({job.run_id for job in left.values()}))
    deadline = time.monotonic() + _SEEN
    while left:
        event = watcher.get(until=deadline)
        if isinstance(event, tuple):
            job, status = event
            if status.state.is_terminal and left.pop(job.id, None) is not None:
                click.echo(f"Ended job: {job.id}")
                unseen.pop(job.id, None)
            meet = [unseen.pop(job.id)] if job.id in unseen else []
        elif unseen:
            meet, unseen = list(unseen.values()), {}
        else:
            break
        for job in meet:
            if now:
                backend.kill(job)
            else:
                backend.terminate(job, grace=grace)
        if meet:
            deadline = time.monotonic() + grace + _PATIENCE
    still = [job.id for job in left.values() if not _is_gone(backend, job)]
    for job_id in left.keys() - set(still):
        click.echo(f"Ended job: {job_id}")
    if still:
        names = ", ".join(still)
        msg = f"still there {grace + _PATIENCE:g} s after they were asked to end: {names}"
        raise FiberError(msg)


def _is_gone(backend: Backend, job: Job) -> bool:
    try:
        return backend.status([job])[0].state.is_terminal
    except UnknownJobError:
        return True
