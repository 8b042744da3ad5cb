"""Errors and signals as the command reports them: a line on stderr and an exit code."""

from __future__ import annotations

from typing import IO, Any

import click

from fiber.exceptions import ConfigError, FiberError

__all__ = ["INTERRUPTED", "Failure", "Interrupted", "after_signal", "is_true"]


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
        click.echo(f"fiber: {self.message}", file=file, err=file is None)


def is_true(text: str) -> bool:
    """Parse a boolean variable; False where it is neither true nor false."""
    from fiber._config.convert import convert

    try:
        return bool(convert(text, bool))
    except ValueError:
        # reported as an error where a command reads the settings
        return False
