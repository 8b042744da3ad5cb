"""``fiber plugins``: lists what is installed and what each plugin offers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from fiber.cli.options import json_option

if TYPE_CHECKING:
    from fiber._plugins.manager import InstalledPlugin, Plugins

__all__ = ["command", "problems", "quiet_plugins"]

_HEADERS = ("DISTRIBUTION", "VERSION", "OFFERS", "NAME", "DETAIL")
_STYLES = {"broken": "red", "clash": "red", "refused": "red"}
#: hooks whose results have rows of their own
_LISTING = frozenset({"fiber_backends", "fiber_commands", "fiber_resource_providers"})


@click.command("plugins", short_help="List plugins and what they offer.")
@json_option
def command(as_json: bool) -> None:
    """List the installed plugins, what each offers, and those that cannot be used, with why."""
    from fiber._plugins.manager import load_plugins
    from fiber.cli import show

    with quiet_plugins():
        plugins = load_plugins()
        if as_json:
            show.as_json(_data(plugins))
        else:
            rows = [row for plugin in plugins.distributions() for row in _rows(plugins, plugin)]
            show.table(_HEADERS, [*rows, *_bad_rows(plugins)], styles=_STYLES)


@contextlib.contextmanager
def quiet_plugins() -> Iterator[None]:
    """Do not log unusable plugins in the ``with`` block; for commands that print them."""
    log = logging.getLogger("fiber.plugins")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def problems(plugins: Plugins) -> list[str]:
    """Return a sentence for each plugin or name that cannot be used."""
    found = [str(error) for error in (*plugins.clashes, *plugins.incompatible_backends().values())]
    # without plugins that are broken by a clash, which is listed already
    found += [str(broken) for broken in plugins.broken if str(broken.error) not in found]
    return [*found, *_shadowed_commands(plugins)]


def _shadowed_commands(plugins: Plugins) -> list[str]:
    from fiber._version import __version__
    from fiber.cli.main import BUILT_IN

    return [
        f"the command {name!r} is offered by fiber-core {__version__} and "
        f"{plugin.distribution} {plugin.version}; fiber-core keeps its own"
        for plugin in plugins.distributions()
        for name in plugin.commands
        if name in BUILT_IN
    ]


def _rows(plugins: Plugins, plugin: InstalledPlugin) -> Iterable[tuple[str, ...]]:
    distribution = (plugin.distribution, plugin.version)
    refused = plugins.incompatible_backends()
    for info in plugin.backends:
        names = ", ".join((info.name, *info.aliases))
        if info.name in refused:
            yield (*distribution, "refused", names, str(refused[info.name]))
        else:
            yield (*distribution, "backend", names, ", ".join(info.capabilities.names()))
    for kind in plugin.resources:
        yield (*distribution, "resource", kind, "")
    for name in plugin.commands:
        yield (*distribution, "command", name, "")
    for hook in plugin.hooks:
        if hook not in _LISTING:
            yield (*distribution, "hook", hook, "")


def _bad_rows(plugins: Plugins) -> Iterable[tuple[str, ...]]:
    for broken in plugins.broken:
        detail = f"{type(broken.error).__name__}: {broken.error}"
        yield broken.distribution, broken.version, "broken", broken.name, detail
    for clash in (*map(str, plugins.clashes), *_shadowed_commands(plugins)):
        yield "", "", "clash", "", clash


def _data(plugins: Plugins) -> dict[str, Any]:
    refused = plugins.incompatible_backends()
    return {
        "plugins": [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "backends": [
                    {
                        "name": info.name,
                        "aliases": list(info.aliases),
                        "api": list(info.api),
                        "summary": info.summary,
                        "default": info.default,
                        "capabilities": list(info.capabilities.names()),
                        "refused": str(refused.get(info.name, "")) or None,
                    }
                    for info in plugin.backends
                ],
                "resources": list(plugin.resources),
                "commands": list(plugin.commands),
                "hooks": list(plugin.hooks),
            }
            for plugin in plugins.distributions()
        ],
        "broken": [
            {
                "name": broken.name,
                "distribution": broken.distribution,
                "version": broken.version,
                "error": f"{type(broken.error).__name__}: {broken.error}",
            }
            for broken in plugins.broken
        ],
        "clashes": [*map(str, plugins.clashes), *_shadowed_commands(plugins)],
    }
