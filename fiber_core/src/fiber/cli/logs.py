"""``fiber logs``: shows what a job wrote."""

from __future__ import annotations

import click

from fiber.cli.options import BackendCommand, backend_option

__all__ = ["command"]


@click.command("logs", cls=BackendCommand, short_help="Show what a job wrote.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@backend_option
@click.argument("job", metavar="JOB")
def command(job: str, follow: bool, tail: int | None, backend: str | None) -> None:
    """Show what JOB wrote: an id, the beginning of one, or a name."""
    from fiber.cli.session import Session
    from fiber.cli.show import find_job

    session = Session.load(backend)
    session.require("logs", "fiber logs")
    if follow:
        session.require("follow_logs", "fiber logs --follow")
    with session.open_backend() as loaded:
        found = find_job(loaded.list(), job)
        for line in loaded.logs(found, tail=tail, follow=follow):
            click.echo(line)
