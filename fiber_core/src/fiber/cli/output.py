"""Output of commands: tables for people, tabs for programs, JSON on request; notes, errors and exit codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from fiber.exceptions import ConfigError, FiberError

#: characters by which a text can give orders to a terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    r"""Write out the control characters in a text of platforms, jobs or members as ``\x1b``.

    Lines and tabs stay. What a job prints is no such text: its colours are its own.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def note(text: str) -> None:
    """Print a line of the command's own on stderr, where texts of others may be in it."""
    click.echo(f"fiber: {plain(text)}", err=True)


def after_signal(number: int) -> int:
    """Return the exit code that shells give for a program that a signal ended."""
    return 128 + number


#: exit code after Ctrl-C
INTERRUPTED = after_signal(2)


class Interrupted(KeyboardInterrupt):
    """A signal to end was received while no job has to be ended first.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Failure(click.ClickException):
    """An error as the command reports it.

    Args:
        error: the error.
        exit_code: exit code of the command; by default 1, or 2 for a wrong setting, as for a
            wrong option.
    """

    def __init__(self, error: FiberError, exit_code: int | None = None) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.exit_code = (  # type: ignore[misc]  # each instance has its own, as in click itself
            exit_code or (2 if isinstance(error, ConfigError) else 1)
        )

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, to stderr by default."""
        click.echo(f"fiber: {plain(self.message)}", file=file, err=file is None)


_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_ANY_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: characters of a column that is not wrapped on a terminal
_NARROW = 20


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print rows: aligned on a terminal, else separated by tabs, without colours.

    Args:
        headers: one word a column, in capitals.
        rows: the cells.
        styles: rich style of a cell by its first word, for terminals.
    """
    cells = [[_ANY_CONTROL.sub(" ", cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, cells, styles or {})
        return
    for row in (headers, *cells):
        print("\t".join(row))


def _print_rich(
    headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for header, *cells in zip(headers, *rows, strict=True):
        # wide columns give way, on more lines; ids, states and ages stay whole
        is_narrow = max(map(len, (header, *cells))) <= _NARROW
        shown.add_column(header, no_wrap=is_narrow, overflow="fold")
    for row in rows:
        # Text, so that brackets in cells are not read as markup
        shown.add_row(*(Text(cell, style=styles.get(cell.partition(" ")[0], "")) for cell in row))
    Console(highlight=False).print(shown)


def as_json(value: Any) -> None:
    """Print a value of lists, dictionaries, texts and numbers as JSON."""
    print(json.dumps(value, indent=2, default=str))


def span(seconds: float) -> str:
    """Format the length of a task: ``20 µs``, ``463 ms``, ``58 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def age(seconds: float) -> str:
    """Format a time span in its largest whole unit: ``45s``, ``3m``, ``2h``, ``9d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"
