"""Jobs: looked up; listed, shown, entered and ended by ``fiber ps``, ``logs``, ``exec``, ``rsh``, ``cp`` and ``kill``."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber._ring.mpi.agent import SOCKET, call, parse
from fiber.cli import output
from fiber.cli.options import BackendCommand, backend_option, json_option
from fiber.cli.output import after_signal, note
from fiber.cli.session import Session, Watcher
from fiber.exceptions import CapabilityError, FiberError, UnknownJobError

if TYPE_CHECKING:
    from typing import BinaryIO

    from fiber.abc import Backend
    from fiber.model import Job, JobStatus, Timing

#: most candidates named in an error
_MOST = 10


@attrs.frozen
class Listed:
    """A job with its status at the time it was listed."""

    #: the job
    job: Job
    #: its status
    status: JobStatus


def list_jobs(backend: Backend, run_id: str | None = None) -> list[Listed]:
    """List the jobs that exist with their statuses, oldest first."""
    found = backend.list(run_id)
    try:
        statuses = backend.status(found)
        listed = [Listed(job, status) for job, status in zip(found, statuses, strict=True)]
    except UnknownJobError:
        # one was removed meanwhile: ask for each
        listed = [item for job in found for item in _ask(backend, job)]
    return sorted(listed, key=lambda item: (item.job.submitted or 0.0, item.job.id))


def _ask(backend: Backend, job: Job) -> Iterable[Listed]:
    try:
        yield Listed(job, backend.status([job])[0])
    except UnknownJobError:
        return


def job_meant(backend: Backend, word: str, listed: Sequence[Job] | None = None) -> Job:
    """Find a job of a backend by its id, else the beginning of its id, else its name.

    Args:
        backend: lists the jobs.
        word: the id, its beginning or the name.
        listed: the jobs, where they were listed already.

    Raises:
        UnknownJobError: no job matches.
        BackendUnavailableError: likewise, and a part of the platform that may have it cannot be asked.
        FiberError: several match.
    """
    try:
        return find_job(backend.list() if listed is None else listed, word)
    except UnknownJobError:
        from fiber.model import Job

        # a list is without what cannot be asked, of which the status of an unknown job tells
        with contextlib.suppress(UnknownJobError):
            backend.status([Job(id=word, name=word, run_id="", backend=backend.name)])
        raise


def find_job(jobs: Sequence[Job], word: str) -> Job:
    """Find a job by its id, else the beginning of its id, else its name.

    Raises:
        UnknownJobError: no job matches.
        FiberError: several match.
    """
    for fits in (
        [job for job in jobs if job.id == word],
        [job for job in jobs if job.id.startswith(word)],
        [job for job in jobs if job.name == word],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            names = ", ".join(f"{job.id} ({job.name})" for job in fits[:_MOST])
            more = f" and {len(fits) - _MOST} more" if len(fits) > _MOST else ""
            msg = f"{word!r} may mean {len(fits)} jobs: {names}{more}; give more of the id"
            raise FiberError(msg)
    msg = f"no job is {word!r}; 'fiber ps -a' lists those there are"
    raise UnknownJobError(msg)


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
def ps(everything: bool, as_json: bool, backend: str | None) -> None:
    """List the jobs of all your runs on the backend, oldest first.

    Why jobs wait, or could not run, is said below the table, on stderr, in the words of their platform.
    """
    with Session.load(backend).open_backend() as loaded:
        listed = [
            item for item in list_jobs(loaded) if everything or not item.status.state.is_terminal
        ]
    if as_json:
        output.as_json([_data(item) for item in listed])
    else:
        now = time.time()
        output.table(_HEADERS, [_row(item, now) for item in listed], styles=_STYLES)
        for line in _causes(listed):
            note(line)


def _row(item: Listed, now: float) -> tuple[str, ...]:
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
        "" if job.submitted is None else output.age(now - job.submitted),
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


@click.command("logs", cls=BackendCommand, short_help="Show what a job wrote.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@backend_option
@click.argument("job", metavar="JOB")
def logs(job: str, follow: bool, tail: int | None, backend: str | None) -> None:
    """Show what JOB wrote: an id, the beginning of one, or a name."""
    session = Session.load(backend)
    session.require("logs", "fiber logs")
    if follow:
        session.require("follow_logs", "fiber logs --follow")
    with session.open_backend() as loaded:
        found = job_meant(loaded, job)
        for line in loaded.logs(found, tail=tail, follow=follow):
            click.echo(line)


@click.command(
    "exec",
    cls=BackendCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Run a program beside a job.",
)
@click.option("-i", "--stdin", is_flag=True, help="Pass on what comes on standard input.")
@click.option("-t", "--tty", is_flag=True, help="Give the program a terminal.")
@backend_option
@click.argument("job", metavar="JOB")
@click.argument("words", metavar="ARGV...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def execute(
    ctx: click.Context,
    job: str,
    words: tuple[str, ...],
    stdin: bool,
    tty: bool,
    backend: str | None,
) -> None:
    """Run ARGV where JOB runs, each word as it is, and end with its exit code.

    JOB is an id, the beginning of one, or a name. A -- may stand between it and ARGV.
    """
    argv = words[1:] if words[0] == "--" else words
    if not argv:
        msg = "name the program to run after the job"
        raise click.UsageError(msg)
    session = Session.load(backend)
    session.require("exec", "fiber exec")
    with session.open_backend() as loaded:
        found = job_meant(loaded, job)
        code = loaded.exec(found, argv, stdin=sys.stdin.buffer if stdin else None, tty=tty)
    ctx.exit(after_signal(-code) if code < 0 else code)


@click.command(
    "rsh",
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
        "ignore_unknown_options": True,
    },
    short_help="Run words in a shell where a job runs.",
)
@click.argument("words", metavar="HOST WORDS...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def rsh(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run WORDS, joined by blanks, in a shell where HOST runs, and end with their exit code.

    Within 'fiber mpirun' HOST is a member; programs that start theirs by a remote shell can be told
    to use 'fiber rsh' in its place. Elsewhere it is a job: an id, the beginning of one, or a name.
    A remote shell's options before HOST are tolerated and mean nothing. Standard input is passed on.
    """
    try:
        host, line = parse(words)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    path = os.environ.get(SOCKET)
    ctx.exit(call(path, host, line) if path else _exec_beside(host, ["/bin/sh", "-c", line]))


def _exec_beside(word: str, argv: Sequence[str]) -> int:
    session = Session.load()
    try:
        session.require("exec", "fiber rsh")
    except CapabilityError as error:
        advice = "its jobs run on this machine, so run the words here; "
        local = advice if session.info.capabilities.same_host else ""
        msg = (
            f"{error}: {local}within 'fiber mpirun' HOST is a member, and that works on any "
            "backend; FIBER_BACKEND names one whose jobs can be entered"
        )
        raise FiberError(msg) from error
    stdin: BinaryIO | None = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
    with session.open_backend() as loaded:
        code = loaded.exec(job_meant(loaded, word), argv, stdin=stdin)
    return after_signal(-code) if code < 0 else code


@click.command("cp", cls=BackendCommand, short_help="Copy files to and from volumes.")
@click.option(
    "-r",
    "--recursive",
    is_flag=True,
    expose_value=False,
    help="No effect, for those used to it: folders are copied with all that is in them anyway.",
)
@backend_option
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
def copy(src: str, dst: str, backend: str | None) -> None:
    """Copy the file or folder SRC to DST; one of them is on a volume, written VOLUME:PATH."""
    session = Session.load(backend)
    session.require("copy", "fiber cp")
    # a signal that ends the command lets the backend remove what it made for the copy
    with session.open_backend() as loaded, Watcher(loaded).signals():
        loaded.copy(src, dst)


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
def kill(
    jobs: tuple[str, ...], run: str | None, grace: float, now: bool, backend: str | None
) -> None:
    """End each JOB: an id, the beginning of one, or a name. Returns when they have ended."""
    if bool(jobs) == bool(run):
        msg = "name the jobs to end, or a run with --run"
        raise click.UsageError(msg)
    session = Session.load(backend)
    with session.open_backend() as loaded:
        listed = {item.job.id: item for item in list_jobs(loaded)}
        known = [item.job for item in listed.values()]
        selected = _of_run(known, run) if run else [job_meant(loaded, word, known) for word in jobs]
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
