"""``fiber exec``: runs a program beside a job."""

from __future__ import annotations

import sys

import click

from fiber.cli.errors import after_signal
from fiber.cli.options import BackendCommand, backend_option

__all__ = ["command"]


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
def command(
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
    from fiber.cli.session import Session
    from fiber.cli.show import find_job

    argv = words[1:] if words[0] == "--" else words
    if not argv:
        msg = "name the program to run after the job"
        raise click.UsageError(msg)
    session = Session.load(backend)
    session.require("exec", "fiber exec")
    with session.open_backend() as loaded:
        found = find_job(loaded.list(), job)
        code = loaded.exec(found, argv, stdin=sys.stdin.buffer if stdin else None, tty=tty)
    ctx.exit(after_signal(-code) if code < 0 else code)
