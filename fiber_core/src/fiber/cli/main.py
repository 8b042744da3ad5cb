"""The program ``fiber``: its options, exit codes, log and error messages."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

from fiber._version import __version__
from fiber.cli.errors import INTERRUPTED, Failure, Interrupted, after_signal, plain
from fiber.cli.group import LazyGroup
from fiber.exceptions import FiberError

__all__ = ["cli", "main"]

log = logging.getLogger("fiber")


class _Command(LazyGroup):
    """Group that reports Fiber's errors and writes Fiber's log to stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command; turns its errors into messages and exit codes."""
        debug = ctx.params["debug"] or _is_true(os.environ.get("FIBER_DEBUG"))
        with _logging(logging.DEBUG if debug else logging.WARNING):
            try:
                return super().invoke(ctx)
            except Interrupted as interrupt:
                ctx.exit(after_signal(interrupt.number))
            except KeyboardInterrupt:
                ctx.exit(INTERRUPTED)
            except (FiberError, Failure) as error:
                if debug:
                    click.echo(plain(traceback.format_exc()), nl=False, err=True)
                if isinstance(error, Failure):
                    raise
                raise Failure(error) from error


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="fiber %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks and all of Fiber's log.")
def cli(debug: bool) -> None:
    """Run programs as jobs, and look after the jobs of Fiber's runs.

    Every command does the same on every backend: the one that --backend names, else FIBER_BACKEND
    or the configuration file, else the one that is detected, else this machine.
    """


def main() -> None:
    """Run the ``fiber`` program."""
    for stream in (sys.stdout, sys.stderr):
        # names and logs of jobs may have characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="fiber")


def _is_true(text: str | None) -> bool:
    if not text:
        return False
    # most commands that only tell something read no settings
    from fiber._config.convert import is_true

    return is_true(text)


class _Prefix(logging.Formatter):
    """Formatter that puts ``fiber:`` before messages that do not begin with it."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return plain(text if text.startswith("fiber: ") else f"fiber: {text}")


@contextlib.contextmanager
def _logging(level: int) -> Iterator[None]:
    handler = logging.StreamHandler()
    handler.setFormatter(_Prefix())
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


if __name__ == "__main__":
    main()
