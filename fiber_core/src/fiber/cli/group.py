"""Group of sub-commands that are imported on use: the core's, then those of plugins."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from fiber.exceptions import PluginError

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins

__all__ = ["BUILT_IN", "LazyGroup"]

#: the core's own commands in the order of ``fiber --help``: each is ``command`` of its module
BUILT_IN = (
    "run",
    "mpirun",
    "ring",
    "ps",
    "top",
    "stacks",
    "replay",
    "dashboard",
    "metrics",
    "trace",
    "logs",
    "exec",
    "rsh",
    "cp",
    "kill",
    "gc",
    "plugins",
    "plugin",
    "config",
    "doctor",
)


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
            module = importlib.import_module(f"fiber.cli.{cmd_name}")
            command: click.Command = module.command
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
