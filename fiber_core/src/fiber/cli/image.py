"""The image that ``fiber run`` starts a job in: the one named, or built from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fiber.cli.question import can_ask
from fiber.exceptions import AmbiguousImageError

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["prepare"]


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
