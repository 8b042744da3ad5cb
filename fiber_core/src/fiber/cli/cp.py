"""``fiber cp``: copies files to and from volumes."""

from __future__ import annotations

import click

from fiber.cli.options import BackendCommand, backend_option

__all__ = ["command"]


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
def command(src: str, dst: str, backend: str | None) -> None:
    """Copy the file or folder SRC to DST; one of them is on a volume, written VOLUME:PATH."""
    from fiber.cli.session import Session
    from fiber.cli.watch import Watcher

    session = Session.load(backend)
    session.require("copy", "fiber cp")
    # a signal that ends the command lets the backend remove what it made for the copy
    with session.open_backend() as loaded, Watcher(loaded).signals():
        loaded.copy(src, dst)
