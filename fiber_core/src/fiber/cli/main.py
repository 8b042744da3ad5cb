"""The program ``fiber``: its options, exit codes, log and error messages, and its sub-commands.

Sub-commands are imported on use: the core's, then those of plugins.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fiber._base.entry_points import load_object
from fiber._version import __version__
from fiber.cli.output import INTERRUPTED, Failure, Interrupted, after_signal, plain
from fiber.exceptions import FiberError, PluginError

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins

#: the core's own commands in the order of ``fiber --help``, and where each is
BUILT_IN = {
    "run": "run:command",
    "mpirun": "mpirun:command",
    "ring": "ring:command",
    "ps": "jobs:ps",
    "top": "top:command",
    "stacks": "stacks:command",
    "replay": "replay:command",
    "dashboard": "dashboard:command",
    "metrics": "dashboard:metrics",
    "trace": "trace:command",
    "logs": "jobs:logs",
    "exec": "jobs:execute",
    "rsh": "jobs:rsh",
    "cp": "jobs:copy",
    "kill": "jobs:kill",
    "gc": "runs:gc",
    "plugins": "installation:plugins",
    "plugin": "plugin:command",
    "config": "installation:config",
    "doctor": "installation:doctor",
}


class LazyGroup(click.Group):
    """Group of the ``fiber`` command; loads plugins only for names that are not the core's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the core's commands, then those of plugins."""
        added = _plugins().commands()
        return [*BUILT_IN, *sorted(set(added) - set(BUILT_IN))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name.

        Raises:
            PluginError: two plugins add it, or it is no click command.
        """
        if cmd_name in BUILT_IN:
            command: click.Command = load_object(f"fiber.cli.{BUILT_IN[cmd_name]}")
            return command
        added: object = _plugins().find_command(cmd_name)
        if added is None or isinstance(added, click.Command):
            return added
        msg = f"the command {cmd_name!r} of a plugin is no click command but {added!r}"
        raise PluginError(msg)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in the help; one that cannot be imported is listed as broken."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        rows = [(name, self._describe(ctx, name, limit)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _describe(self, ctx: click.Context, name: str, limit: int) -> str:
        try:
            command = self.get_command(ctx, name)
            return "" if command is None else command.get_short_help_str(limit)
        except Exception as error:
            return f"(broken: {error})"


def _plugins() -> Plugins:
    from fiber._plugins.manager import load_plugins

    return load_plugins()


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
