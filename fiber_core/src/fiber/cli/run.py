"""``fiber run``: starts a program as a job.

The image that ``fiber run`` starts a job in: the one named, or built from a folder.

Follows one job to its end: its output, its exit code, and signals that end it.
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

from fiber.cli.errors import INTERRUPTED, Failure, after_signal
from fiber.cli.options import (
    BackendCommand,
    backend_option,
    cpus,
    device,
    megabytes,
    variable,
    volume,
)
from fiber.cli.watch import Question, Watcher, can_ask
from fiber.exceptions import AmbiguousImageError, FiberError, SubmitError
from fiber.model import JobSpec, JobState, ReasonKind, ResourceRequest, Volume

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.cli.session import Session
    from fiber.model import Job, JobSpec, JobStatus

__all__ = ["attend", "command", "exit_code", "prepare"]


def prepare(backend: Backend, file: str | None) -> str | None:
    """Build the image that the working directory describes; None where it describes none.

    Args:
        backend: builds it, and pushes it where jobs need that.
        file: the file that describes it, where one was named.

    Raises:
        AmbiguousImageError: several files describe one each, and nobody can be asked.
    """
    try:
        return backend.prepare_image(str(Path.cwd()) if file is None else str(Path(file).resolve()))
    except AmbiguousImageError as error:
        if not can_ask():
            raise
        chosen = Path(error.folder, _ask(error))
    return backend.prepare_image(str(chosen))


def _ask(error: AmbiguousImageError) -> str:
    click.echo(f"{error.folder} describes several images:", err=True)
    for number, name in enumerate(error.candidates, 1):
        click.echo(f"{number:>3}  {name}", err=True)
    wanted = click.IntRange(1, len(error.candidates))
    return error.candidates[click.prompt("which one", type=wanted, default=1, err=True) - 1]


#: seconds that a job has to end after Ctrl-C
_GRACE = 5.0
_NOT_STARTED = 127
#: reasons of the platform's, for which no program is to blame
_NEVER_RAN = frozenset({ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE})
#: what a job is called where no tool but ours knows it
_PLAIN = "job"


def attend(session: Session, backend: Backend, run_id: str, spec: JobSpec) -> tuple[int, bool]:
    """Start a job and follow it.

    Args:
        session: of the command.
        backend: where it runs.
        run_id: the run.
        spec: the job; one that is detached can be left.

    Returns:
        what the command ends with, and whether the job was left running.
    """
    noun = session.info.noun
    watcher = Watcher(backend, run_id)
    with watcher.signals():
        job = session.submit(backend, spec)
        watcher.queue_signals()
        if noun != _PLAIN:
            # where it is looked for with other tools, too
            click.echo(f"Created {noun}: {job.id}", err=True)
        copy = None if session.info.capabilities.output else _copied(backend, job)
        with Question(watcher.answer) as question:
            ending = _Ending(backend, job, noun, question, can_leave=spec.detached)
            status = _to_the_end(session, job, watcher, ending)
        if status is not None and copy is not None:
            copy.join()
    if status is None:
        click.echo(f"fiber: {noun} {job.id} goes on: fiber logs -f {job.id}", err=True)
        return INTERRUPTED, True
    if ending.signum is not None:
        return after_signal(ending.signum), False
    if status.reason is not None and status.reason.kind is not ReasonKind.EXIT:
        click.echo(f"fiber: {noun} {job.id}: {status.message or status.reason}", err=True)
    return exit_code(status), False


def exit_code(status: JobStatus) -> int:
    """The exit code of an ended job as shells give it: 128 and the signal for one that was killed."""
    code = status.exit_code
    if status.reason is not None and status.reason.kind in _NEVER_RAN:
        return 1
    if code is not None and not (code == 0 and status.state is JobState.FAILED):
        return after_signal(-code) if code < 0 else code
    if status.reason is not None and status.reason.kind is ReasonKind.START:
        return _NOT_STARTED
    return 1


class _Ending:
    """Decides what a signal means: a question, the job's end in order, or at once."""

    def __init__(
        self, backend: Backend, job: Job, noun: str, question: Question, *, can_leave: bool
    ) -> None:
        self._backend = backend
        self._job = job
        self._what = f"{noun} {job.id}"
        self._question = question
        self._can_leave = can_leave
        #: the signal that ends the job, once one does
        self.signum: int | None = None
        #: True once the job is to go on without us
        self.leaves = False

    def heard(self, number: int) -> None:
        """A signal came."""
        if self.signum is not None:
            self._backend.kill(self._job)
        elif number != signal.SIGINT or self._question.is_open or not can_ask():
            self._end(number)
        else:
            choice = "y: yes, l: leave it running [y/l/N]" if self._can_leave else "[y/N]"
            self._question.ask(f"\nfiber: end {self._what}? {choice} ")

    def answered(self, text: str) -> None:
        """A person answered."""
        if self.signum is not None:
            return
        if text in {"y", "yes"}:
            self._end(signal.SIGINT)
        elif self._can_leave and text in {"l", "leave"}:
            self.leaves = True
        else:
            click.echo(f"fiber: {self._what} goes on", err=True)

    def _end(self, number: int) -> None:
        self.signum = number
        self._backend.terminate(self._job, grace=_GRACE)
        if number == signal.SIGINT and sys.stderr.isatty():
            click.echo(f"fiber: ending {self._what}, Ctrl-C again to kill it", err=True)


def _to_the_end(session: Session, job: Job, watcher: Watcher, ending: _Ending) -> JobStatus | None:
    """The terminal status; None for a job that is left running."""
    previous: JobStatus | None = None
    said = ""
    while not ending.leaves:
        event = watcher.get()
        assert event is not None
        if isinstance(event, int):
            ending.heard(event)
            continue
        if isinstance(event, str):
            ending.answered(event)
            continue
        told, status = event
        if told.id != job.id:
            continue
        session.plugins.notify("fiber_job_changed", job=job, previous=previous, current=status)
        previous = status
        if status.state.is_terminal:
            return status
        if status.state is JobState.PENDING and status.message not in {"", said}:
            said = status.message
            click.echo(f"fiber: {session.info.noun} {job.id} waits: {said}", err=True)
    return None


def _copied(backend: Backend, job: Job) -> threading.Thread:
    """Until the job's end its lines are copied to stdout, on a thread that ends then."""

    def copy() -> None:
        try:
            for line in backend.logs(job, follow=True):
                click.echo(line)
        except FiberError as error:
            click.echo(f"fiber: the output of job {job.id} is incomplete: {error}", err=True)
        except BrokenPipeError:
            # whoever read our output has gone; the job goes on, as it would anywhere
            return

    thread = threading.Thread(target=copy, name="fiber-output", daemon=True)
    thread.start()
    return thread


#: belongs to one process of a run, and not to programs that are started from it
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
@click.option(
    "-v",
    "--volume",
    "volumes",
    type=volume,
    multiple=True,
    metavar="VOLUME[:PATH]",
    help="Mount a volume, at /persistent if no path is given; read-only with :ro behind the path.",
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
    from fiber.cli.session import Session

    if image and image_file:
        msg = "name an image with --image, or the file that describes one, and not both"
        raise click.UsageError(msg)
    session = Session.load(backend, {"cpu": cpu, "memory": memory, "image": image})
    requested = dict(devices) | ({} if gpu is None else {"gpu": gpu})
    _refuse_early(
        session,
        {
            "cpu_limit": "" if cpu is None else "--cpu",
            "memory_limit": "" if memory is None else "--memory",
            "images": f"--image {image}" if image else "--image-file" if image_file else "",
            "volumes": "".join(f"-v {wanted.source}" for wanted in volumes[:1]),
        },
        attach=attach,
    )
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
        cwd=_folder() if session.info.capabilities.same_host else None,
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


def _refuse_early(session: Session, asked: dict[str, str], *, attach: bool) -> None:
    for capability, what in asked.items():
        if what:
            session.require(capability, what)
    if not attach:
        session.require("detached", "a job that goes on by itself (run without --attach)")
    elif not session.info.capabilities.output:
        session.require("follow_logs", "--attach")


def _environment(session: Session) -> dict[str, str]:
    named = {key: os.environ[key] for key in session.config.env if key in os.environ}
    return {**named, **session.config.to_environ(), "FIBER_BACKEND": session.info.name}


def _folder() -> str | None:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        # it was removed under us, and the job may do without it
        return None


def _detached(session: Session, spec: JobSpec, image_file: str | None) -> int:
    import attrs

    with session.begin_run(detached=True) as run:
        spec = _with_image(session, run.backend, attrs.evolve(spec, run_id=run.id), image_file)
        job = session.submit(run.backend, spec)
        click.echo(f"Created {session.info.noun}: {job.id}")
    return 0


def _attached(session: Session, spec: JobSpec, image_file: str | None) -> int:
    import attrs

    can = session.info.capabilities
    # what we only look at from afar can do without us for a while, or for good
    afar = can.detached and not (can.output or can.same_host)
    with session.begin_run(detached=afar) as run:
        spec = attrs.evolve(spec, run_id=run.id, detached=afar)
        spec = _with_image(session, run.backend, spec, image_file)
        code, left = attend(session, run.backend, run.id, spec)
        run.stays = left
        return code


def _with_image(
    session: Session, backend: Backend, spec: JobSpec, image_file: str | None
) -> JobSpec:
    """The same job, in the image that a file or the working directory describes if none is named."""
    import attrs

    if not session.info.capabilities.images or spec.image is not None:
        return spec
    # where it describes none: the backend's own default, or its word on what is missing
    return attrs.evolve(spec, image=prepare(backend, image_file))


def _shell_code(program: str) -> int:
    """What a shell answers where a program is not found, and where it cannot be run."""
    return 127 if shutil.which(program, mode=os.F_OK) is None else 126
