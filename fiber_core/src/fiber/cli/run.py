"""``fiber run``: starts a program as a job, and with ``--attach`` follows it to its end.

The image that the job runs in is the one named, or built from the working directory first. An
attached job's output is copied, its exit code returned, and signals to the command end it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fiber._base.interpreter import working_folder
from fiber.cli.options import (
    BackendCommand,
    backend_option,
    cpus,
    device,
    megabytes,
    variable,
    volume_option,
)
from fiber.cli.output import INTERRUPTED, Failure, after_signal, note
from fiber.cli.session import Question, Session, Watcher, can_ask
from fiber.exceptions import AmbiguousImageError, FiberError, SubmitError
from fiber.model import JobSpec, JobState, ReasonKind, ResourceRequest, Volume

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.model import Job, JobStatus


def prepare(backend: Backend, file: str | None) -> str | None:
    """Build the image that the working directory describes; None where it describes none.

    Args:
        backend: builds the image, and pushes it where jobs need that.
        file: file that describes the image, where one was named.

    Raises:
        AmbiguousImageError: several files describe one each, and there is no terminal to ask on.
    """
    try:
        return backend.prepare_image(str(Path.cwd()) if file is None else str(Path(file).resolve()))
    except AmbiguousImageError as error:
        if not can_ask():
            raise
        chosen = Path(error.folder, _ask_which(error))
    return backend.prepare_image(str(chosen))


def _ask_which(error: AmbiguousImageError) -> str:
    click.echo(f"{error.folder} describes several images:", err=True)
    for number, name in enumerate(error.candidates, 1):
        click.echo(f"{number:>3}  {name}", err=True)
    number_type = click.IntRange(1, len(error.candidates))
    return error.candidates[click.prompt("which one", type=number_type, default=1, err=True) - 1]


_NOT_STARTED = 127
#: reasons for which the program never ran
_NOT_RUN = frozenset({ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE})
#: noun of platforms whose own tools do not know jobs
_GENERIC_NOUN = "job"


def follow_job(session: Session, backend: Backend, run_id: str, spec: JobSpec) -> tuple[int, bool]:
    """Start a job and follow it to its end.

    Args:
        session: the command's session.
        backend: backend to run it on.
        run_id: the run.
        spec: the job; a detached one can be left running.

    Returns:
        the command's exit code, and whether the job was left running.
    """
    noun = session.info.noun
    watcher = Watcher(backend, run_id)
    with watcher.signals(session.config.timing.submission if can_ask() else 0.0):
        job = session.submit(backend, spec)
        watcher.queue_signals()
        if noun != _GENERIC_NOUN:
            # the name that the platform's own tools know
            click.echo(f"Created {noun}: {job.id}", err=True)
        copy = None if session.info.capabilities.output else _copy_output(backend, job)
        with Question(watcher.answer) as question:
            policy = _SignalPolicy(
                backend,
                job,
                noun,
                question,
                can_leave=spec.detached,
                grace=session.config.timing.interrupt_grace,
            )
            status = _wait_for_end(session, job, watcher, policy)
        if status is not None and copy is not None:
            copy.join()
    if status is None:
        note(f"{noun} {job.id} goes on: fiber logs -f {job.id}")
        return INTERRUPTED, True
    if policy.signum is not None:
        return after_signal(policy.signum), False
    if (
        status.reason is not None
        and status.reason.kind is not ReasonKind.EXIT
        and not _ends_output(f"fiber: {status.message}", status)
    ):
        note(f"{noun} {job.id}: {status.message or status.reason}")
    return exit_code(status), False


def _ends_output(line: str, status: JobStatus) -> bool:
    """True where a line is the job's last one, so that it was shown with its output."""
    return any(process.log_tail[-1:] == (line,) for process in status.processes)


def exit_code(status: JobStatus) -> int:
    """Return an ended job's exit code as shells give it: 128 plus the signal for a killed one."""
    code = status.exit_code
    if status.reason is not None and status.reason.kind in _NOT_RUN:
        return 1
    if code is not None and not (code == 0 and status.state is JobState.FAILED):
        return after_signal(-code) if code < 0 else code
    if status.reason is not None and status.reason.kind is ReasonKind.START:
        return _NOT_STARTED
    return 1


class _SignalPolicy:
    """Reaction to signals while a job is followed: a question, SIGTERM with grace, or SIGKILL."""

    def __init__(
        self,
        backend: Backend,
        job: Job,
        noun: str,
        question: Question,
        *,
        can_leave: bool,
        grace: float,
    ) -> None:
        self._backend = backend
        self._job = job
        self._title = f"{noun} {job.id}"
        self._question = question
        self._can_leave = can_leave
        self._grace = grace
        #: the signal for which the job is being ended, if any
        self.signum: int | None = None
        #: True once the user chose to leave the job running
        self.leaves = False

    def on_signal(self, number: int) -> None:
        """React to a signal."""
        if self.signum is not None:
            self._backend.kill(self._job)
        elif number != signal.SIGINT or self._question.is_open or not can_ask():
            self._end(number)
        else:
            choice = "y: yes, l: leave it running [y/l/N]" if self._can_leave else "[y/N]"
            self._question.ask(f"\nfiber: end {self._title}? {choice} ")

    def on_answer(self, text: str) -> None:
        """React to the user's answer."""
        if self.signum is not None:
            return
        if text in {"y", "yes"}:
            self._end(signal.SIGINT)
        elif self._can_leave and text in {"l", "leave"}:
            self.leaves = True
        else:
            note(f"{self._title} goes on")

    def _end(self, number: int) -> None:
        self.signum = number
        self._backend.terminate(self._job, grace=self._grace)
        if number == signal.SIGINT and sys.stderr.isatty():
            note(f"ending {self._title}, Ctrl-C again to kill it")


def _wait_for_end(
    session: Session, job: Job, watcher: Watcher, policy: _SignalPolicy
) -> JobStatus | None:
    """Wait for the terminal status; returns None for a job that is left running."""
    previous: JobStatus | None = None
    shown = ""
    while not policy.leaves:
        event = watcher.get()
        assert event is not None
        if isinstance(event, int):
            policy.on_signal(event)
            continue
        if isinstance(event, str):
            policy.on_answer(event)
            continue
        changed, status = event
        if changed.id != job.id:
            continue
        session.plugins.notify("fiber_job_changed", job=job, previous=previous, current=status)
        previous = status
        if status.state.is_terminal:
            return status
        if status.state is JobState.PENDING and status.message not in {"", shown}:
            shown = status.message
            how = "is starting" if status.is_starting else "waits"
            note(f"{session.info.noun} {job.id} {how}: {shown}")
    return None


def _copy_output(backend: Backend, job: Job) -> threading.Thread:
    """Copy a job's lines to stdout on a thread, which ends with the job."""

    def copy() -> None:
        try:
            for line in backend.logs(job, follow=True):
                click.echo(line)
        except FiberError as error:
            note(f"the output of job {job.id} is incomplete: {error}")
        except BrokenPipeError:
            # the reader of our output has gone; the job goes on
            return

    thread = threading.Thread(target=copy, name="fiber-output", daemon=True)
    thread.start()
    return thread


#: variables of one process of a run, removed from the environment of jobs
_NOT_PASSED_ON = frozenset({"FIBER_BOOTSTRAP"})


@click.command(
    "run",
    cls=BackendCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Start a program as a job.",
)
@click.option("--gpu", type=click.IntRange(min=1), metavar="N", help="GPUs of the job.")
@click.option(
    "--device",
    "devices",
    type=device,
    multiple=True,
    metavar="KIND[=N]",
    help="Devices of any kind that a resource provider is installed for.",
)
@click.option("--cpu", type=cpus, metavar="N", help="CPUs of the job, fractions allowed.")
@click.option("--memory", type=megabytes, metavar="MB", help="Memory of the job in MB, or as 4Gi.")
@volume_option(
    "Mount a volume, at /persistent if no path is given; read-only with :ro behind the path."
)
@click.option(
    "-e",
    "--env",
    "variables",
    type=variable,
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Variable of the job; without a value it has ours.",
)
@click.option("--image", metavar="IMAGE", help="Image that the job runs in.")
@click.option(
    "--image-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Build the image that FILE describes, not the one of the working directory.",
)
@click.option("-a", "--attach", is_flag=True, help="Follow the job and end as it ends.")
@click.option("--name", metavar="NAME", help="Name of the job.")
@backend_option
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    words: tuple[str, ...],
    gpu: int | None,
    devices: tuple[tuple[str, int], ...],
    cpu: float | None,
    memory: int | None,
    volumes: tuple[Volume, ...],
    variables: tuple[tuple[str, str], ...],
    image: str | None,
    image_file: str | None,
    attach: bool,
    name: str | None,
    backend: str | None,
) -> None:
    """Start COMMAND as a job, in which Fiber uses the same backend and settings.

    COMMAND begins at the first word that is no option. Without --attach the job's id is printed
    and the job goes on by itself. With it the job's output is shown, its exit code is returned,
    and Ctrl-C ends it.

    Where jobs run in images and none is named, the image that the working directory describes, if
    it does, is built first.
    """
    if image and image_file:
        msg = "name an image with --image, or the file that describes one, and not both"
        raise click.UsageError(msg)
    session = Session.load(backend, {"cpu": cpu, "memory": memory, "image": image})
    requested = dict(devices) | ({} if gpu is None else {"gpu": gpu})
    session.require_given(
        images=f"--image {image}" if image else "--image-file" if image_file else "",
        volumes="".join(f"-v {mounted.source}" for mounted in volumes[:1]),
        detached="" if attach else "a job that goes on by itself (run without --attach)",
        follow_logs="--attach" if attach and not session.info.capabilities.output else "",
    )
    session.note_unenforced(cpu=cpu, memory=memory)
    for kind in requested:
        session.plugins.find_provider(kind)
        session.require("devices", f"a job with devices ({kind})")
    config = session.config
    spec = JobSpec(
        run_id="",
        name=name or Path(words[0]).name or words[0],
        argv=words,
        env={**_environment(session), **dict(variables)},
        unset_env=_NOT_PASSED_ON,
        # where it was removed, the job may not need it
        cwd=working_folder() if session.info.capabilities.same_host else None,
        resources=ResourceRequest(cpu=config.cpu, memory=config.memory, devices=requested),
        image=config.image if session.info.capabilities.images and not image_file else None,
        volumes=volumes,
        detached=not attach,
        log_prefix=config.log_prefix,
    )
    try:
        start = _attached if attach else _detached
        ctx.exit(start(session, spec, image_file))
    except SubmitError as error:
        code = _shell_code(words[0]) if session.info.capabilities.same_host else None
        raise Failure(error, code) from error


def _environment(session: Session) -> dict[str, str]:
    named = {key: os.environ[key] for key in session.config.env if key in os.environ}
    return {**named, **session.config.to_environ(), "FIBER_BACKEND": session.info.name}


def _detached(session: Session, spec: JobSpec, image_file: str | None) -> int:
    with session.begin_run(detached=True) as run:
        spec = _with_image(session, run.backend, _of_run(spec, run.id), image_file)
        job = session.submit(run.backend, spec)
        click.echo(f"Created {session.info.noun}: {job.id}")
    return 0


def _of_run(spec: JobSpec, run: str) -> JobSpec:
    import attrs

    from fiber._agent.rundir import OUTER_VARIABLE

    return attrs.evolve(spec, run_id=run, env={**spec.env, OUTER_VARIABLE: run})


def _attached(session: Session, spec: JobSpec, image_file: str | None) -> int:
    import attrs

    can = session.info.capabilities
    # a job on another host whose output is fetched can be left, and survives a lost connection
    leavable = can.detached and not (can.output or can.same_host)
    with session.begin_run(detached=leavable) as run:
        spec = attrs.evolve(_of_run(spec, run.id), detached=leavable)
        spec = _with_image(session, run.backend, spec, image_file)
        code, left = follow_job(session, run.backend, run.id, spec)
        run.stays = left
        return code


def _with_image(
    session: Session, backend: Backend, spec: JobSpec, image_file: str | None
) -> JobSpec:
    """Return the spec with the image that a file or the working directory describes."""
    import attrs

    if not session.info.capabilities.images or spec.image is not None:
        return spec
    # None where it describes none: then the backend uses its default or raises
    return attrs.evolve(spec, image=prepare(backend, image_file))


def _shell_code(program: str) -> int:
    """Return a shell's exit code for a program that is not found, or cannot be run."""
    return 127 if shutil.which(program, mode=os.F_OK) is None else 126
