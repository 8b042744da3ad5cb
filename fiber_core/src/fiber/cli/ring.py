"""``fiber ring``: runs rings of commands, and allreduce jobs that manifests describe."""

from __future__ import annotations

import json
import sys
from typing import IO, Any

import click

from fiber.cli.options import backend_option
from fiber.cli.rings import commands
from fiber.exceptions import FiberError

__all__ = ["command"]


@click.group("ring", short_help="Run rings of commands, and manifests of allreduce jobs.")
def command() -> None:
    """Run a command as equal ranks on any backend, and look after rings that run.

    Manifests of the MPI operator are run without the operator.
    """


@command.command("apply")
@click.option(
    "--strict", is_flag=True, help="Refuse a manifest with a field that is not supported."
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time until all jobs, and then all ranks, have to be there.",
)
@backend_option
@click.argument("manifest", type=click.File("r"))
@click.pass_context
def apply(
    ctx: click.Context,
    manifest: IO[str],
    strict: bool,
    start_timeout: float | None,
    backend: str | None,
) -> None:
    """Run the MPIJob (v2beta1) of MANIFEST, a file of YAML or JSON, and end as its launcher does.

    Workers and the launcher are jobs of the backend. Fields that are not supported are named, each
    with its path, and refused with --strict.
    """
    import fiber
    from fiber._ring.mpi.apply import fitted, plan_of, try_again
    from fiber._ring.mpi.manifest import read
    from fiber._ring.mpi.run import run
    from fiber.cli.session import Session

    session = Session.load(backend)
    job = fitted(read(_parsed(manifest)), session.info.capabilities)
    for path in job.unsupported:
        click.echo(f"fiber: not supported: {path}", err=True)
    if strict and job.unsupported:
        msg = f"{job.name} has fields that are not supported, and --strict refuses these"
        raise FiberError(msg)
    if job.suspended:
        click.echo(
            f"fiber: {job.name} is suspended (spec.runPolicy.suspend); nothing is started", err=True
        )
        return
    timeout = session.config.start_timeout if start_timeout is None else start_timeout
    plan = plan_of(job, timeout)
    fiber.init(backend=session.info.name, start_timeout=timeout)
    try:
        verdict = try_again(
            lambda: run(plan), job.retries, lambda why: click.echo(f"fiber: {why}", err=True)
        )
    finally:
        from fiber._runtime import runtime

        runtime.current().close()
    if verdict.why:
        click.echo(f"fiber: {verdict.why}", err=True)
    ctx.exit(verdict.code)


def _parsed(manifest: IO[str]) -> Any:
    text = manifest.read()
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError as error:
        msg = f"YAML needs another distribution: {sys.executable} -m pip install pyyaml; or write JSON"
        raise FiberError(msg) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        msg = f"{manifest.name} is no YAML: {error}"
        raise FiberError(msg) from error


for _one in commands:
    command.add_command(_one)
