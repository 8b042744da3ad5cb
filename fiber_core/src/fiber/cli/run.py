"""``fiber run``: starts a program as a job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fiber.cli.backend_options import BackendCommand
from fiber.cli.errors import Failure
from fiber.cli.options import backend_option, cpus, device, megabytes, variable, volume
from fiber.exceptions import SubmitError
from fiber.model import JobSpec, ResourceRequest, Volume

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.cli.session import Session

__all__ = ["command"]

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

    from fiber.cli.attach import attend

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

    from fiber.cli.image import prepare

    if not session.info.capabilities.images or spec.image is not None:
        return spec
    # where it describes none: the backend's own default, or its word on what is missing
    return attrs.evolve(spec, image=prepare(backend, image_file))


def _shell_code(program: str) -> int:
    """What a shell answers where a program is not found, and where it cannot be run."""
    return 127 if shutil.which(program, mode=os.F_OK) is None else 126
