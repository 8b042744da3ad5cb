"""Errors and signals as the command reports them: a line on stderr and an exit code."""

from __future__ import annotations

import re
from typing import IO, Any

import click

from fiber.exceptions import ConfigError, FiberError

__all__ = [
    "INTERRUPTED",
    "Failure",
    "Interrupted",
    "after_signal",
    "note",
    "plain",
]

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
