"""Options that backends add to commands: settings of theirs that a command line may set.

A field of a backend's settings class becomes one by its metadata: ``option``, how it is written, and
``help``; and ``commands``, the names of the commands that have it, where not all have.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber._config.convert import settings_of
from fiber._config.keys import key_prefix

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins
    from fiber.model import BackendInfo

__all__ = ["BackendCommand", "Given", "loaded_plugins", "options_given"]

_PLUGINS = "fiber._plugins.manager"
_ADDED = "fiber.backend_options"
_GIVEN = "fiber.backend_options.given"
_log = logging.getLogger("fiber")


@attrs.frozen
class Given:
    """An option that was written."""

    #: how it is written, ``--namespace``
    flag: str
    #: what it was given
    value: str
    #: canonical names of the backends that have it
    backends: tuple[str, ...]


class BackendCommand(click.Command):
    """A command that has the options of installed backends behind its own."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own options and arguments, then those of backends."""
        own = super().get_params(ctx)
        if _ADDED not in ctx.meta:
            ctx.meta[_PLUGINS] = _load()
            taken = {word for param in own for word in param.opts}
            ctx.meta[_ADDED] = _options(ctx.meta[_PLUGINS], str(self.name), taken)
        added: list[click.Parameter] = ctx.meta[_ADDED]
        return [*own, *added]


def loaded_plugins() -> Plugins:
    """The plugins that the command at work has loaded, or those there are."""
    context = click.get_current_context(silent=True)
    found: Plugins | None = None if context is None else context.meta.get(_PLUGINS)
    return _load() if found is None else found


def options_given(info: BackendInfo) -> dict[str, tuple[str, str]]:
    """What options of the command at work set for a backend: flag and value by key.

    Raises:
        click.UsageError: an option is another backend's.
    """
    context = click.get_current_context(silent=True)
    given: list[Given] = [] if context is None else context.meta.get(_GIVEN, [])
    keys = {flag: key for key, flag, _ in _declared(info)}
    for option in given:
        if option.flag not in keys:
            owners = ", ".join(option.backends)
            msg = f"{option.flag} is an option of {owners}, and the backend is {info.name}"
            raise click.UsageError(msg)
    prefix = key_prefix(info.name)
    return {prefix + keys[option.flag]: (option.flag, option.value) for option in given}


def _load() -> Plugins:
    from fiber._plugins import manager

    return manager.load_plugins()


def _options(plugins: Plugins, command: str, taken: set[str]) -> list[click.Parameter]:
    """An option for each flag, whichever backends have it."""
    found: dict[str, tuple[list[str], str]] = {}
    for info in plugins.backends().values():
        for _, flag, metadata in _declared(info):
            if command not in metadata.get("commands", (command,)):
                continue
            if flag in taken:
                _log.debug("option %s of backend %s is the command's own", flag, info.name)
                continue
            owners, _ = found.setdefault(flag, ([], str(metadata.get("help", ""))))
            owners.append(info.name)
    return [
        click.Option(
            [flag],
            metavar="VALUE",
            help=f"{text[:1].upper()}{text[1:]} ({', '.join(owners)}).",
            expose_value=False,
            callback=_note(flag, tuple(owners)),
        )
        for flag, (owners, text) in sorted(found.items())
    ]


def _note(flag: str, owners: tuple[str, ...]) -> Any:
    def note(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_GIVEN, []).append(Given(flag, value, owners))

    return note


def _declared(info: BackendInfo) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Key, flag and metadata of the settings of a backend that are options."""
    return [
        (key, str(field.metadata["option"]), field.metadata)
        for key, field in settings_of(info.config or object).items()
        if field.metadata.get("option")
    ]
