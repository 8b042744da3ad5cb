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
    from fiber.model import Job, Timing

__all__ = ["command"]


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
    session = Session.load(backend)
    with session.open_backend() as loaded:
        listed = {item.job.id: item for item in list_jobs(loaded)}
        known = [item.job for item in listed.values()]
        selected = _of_run(known, run) if run else [find_job(known, word) for word in jobs]
        chosen = {job.id: listed[job.id] for job in selected}
        _end(loaded, chosen, 0.0 if now else grace, session.config.timing, now=now)


def _of_run(jobs: list[Job], word: str) -> list[Job]:
    runs = sorted({job.run_id for job in jobs if job.run_id.startswith(word)})
    if len(runs) != 1:
        msg = f"no run is {word!r}; 'fiber ps -a' lists those there are"
        if runs:
            msg = f"{word!r} may mean {len(runs)} runs: {', '.join(runs)}; give more of the id"
        raise FiberError(msg)
    return [job for job in jobs if job.run_id == runs[0]]


def _end(
    backend: Backend, selected: dict[str, Listed], grace: float, timing: Timing, *, now: bool
) -> None:
    from fiber.cli.watch import Watcher

    left: dict[str, Job] = {}
    for job_id, item in selected.items():
        if item.status.state.is_terminal:
            click.echo(f"Ended before: {job_id}")
        else:
            left[job_id] = item.job
    # each job is ended once its run's events show it, so that its end cannot be missed
    pending = dict(left)
    watcher = Watcher(backend, *sorted({job.run_id for job in left.values()}))
    deadline = time.monotonic() + timing.first_event
    while left:
        event = watcher.get(until=deadline)
        if isinstance(event, tuple):
            job, status = event
            if status.state.is_terminal and left.pop(job.id, None) is not None:
                click.echo(f"Ended job: {job.id}")
                pending.pop(job.id, None)
            to_end = [pending.pop(job.id)] if job.id in pending else []
        elif pending:
            to_end, pending = list(pending.values()), {}
        else:
            break
        for job in to_end:
            if now:
                backend.kill(job)
            else:
                backend.terminate(job, grace=grace)
        if to_end:
            deadline = time.monotonic() + grace + timing.unconfirmed
    alive = [job.id for job in left.values() if not _is_gone(backend, job)]
    for job_id in left.keys() - set(alive):
        click.echo(f"Ended job: {job_id}")
    if alive:
        names = ", ".join(alive)
        msg = f"still there {grace + timing.unconfirmed:g} s after they were asked to end: {names}"
        raise FiberError(msg)


def _is_gone(backend: Backend, job: Job) -> bool:
    try:
        return backend.status([job])[0].state.is_terminal
    except UnknownJobError:
        return True
