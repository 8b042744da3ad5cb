"""How an error of Fiber's own ends the command: a line on stderr and an exit code."""

from __future__ import annotations

from typing import IO, Any

import click

from fiber.exceptions import ConfigError, FiberError

__all__ = ["INTERRUPTED", "Failure", "Interrupted", "after_signal", "is_true"]


def after_signal(number: int) -> int:
    """The exit code that shells give for a program that a signal ended."""
    return 128 + number


#: exit code after Ctrl-C
INTERRUPTED = after_signal(2)


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to end, at a time when nothing else has to end first.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Failure(click.ClickException):
    """An error as the command tells it.

    Args:
        error: the error.
        exit_code: what the command ends with, by default 1, or 2 where a setting is wrong: that
            is the caller's to mend, as a wrong option is.
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
    """What a variable means that is a yes or a no; no where it means neither."""
    from fiber._config.convert import convert

    try:
        return bool(convert(text, bool))
    except ValueError:
        # the settings are judged, and the mistake told, where a command reads them
        return False
