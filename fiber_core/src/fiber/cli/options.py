"""Options shared by commands, parsers of their values, and options that backends add to commands.

A field of a backend's settings class becomes an option by its metadata: ``option``, its flag, and
``help``; and ``commands``, the names of the commands that have it, if not all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from fiber._config.convert import key_prefix, parse_cpu, parse_memory, settings_of
from fiber.model import Volume

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins
    from fiber.model import BackendInfo

_T = TypeVar("_T")

#: default path of a volume
_MOUNT = "/persistent"

backend_option = click.option("--backend", metavar="BACKEND", help="Backend to use.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
start_timeout_option = click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time until all jobs, and then all ranks, have to be there.",
)


def cpus(word: str) -> float:
    """Parse a number of CPUs."""
    return _parsed(parse_cpu, word)


def megabytes(word: str) -> int:
    """Parse an amount of memory, in MB (2**20 bytes)."""
    return _parsed(parse_memory, word)


def volume(word: str) -> Volume:
    """Parse a volume: ``SOURCE[:PATH][:ro]``."""
    source, _, rest = word.partition(":")
    path, _, mode = rest.partition(":")
    if path == "ro" and not mode:
        path, mode = "", path
    path = path or _MOUNT
    if not source or not path.startswith("/") or mode not in {"", "ro", "rw"}:
        msg = (
            f"{word!r} is no volume: write its name or a folder, after a colon where it is mounted, "
            "and :ro behind that where nothing may be written"
        )
        raise click.BadParameter(msg)
    return Volume(source=source, path=path, read_only=mode == "ro")


def volume_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option of volumes, which may be given several times; ``text`` is its help."""
    return click.option(
        "-v",
        "--volume",
        "volumes",
        type=volume,
        multiple=True,
        metavar="VOLUME[:PATH]",
        help=text,
    )


def variable(word: str) -> tuple[str, str]:
    """Parse a variable: ``NAME=VALUE``, or ``NAME`` for the value in this environment."""
    name, is_given, value = word.partition("=")
    if not name:
        msg = f"{word!r} is no variable: write NAME=VALUE, or NAME for the value it has here"
        raise click.BadParameter(msg)
    if not is_given and name not in os.environ:
        msg = f"{name} is not set here: write {name}=VALUE"
        raise click.BadParameter(msg)
    return name, value if is_given else os.environ[name]


def device(word: str) -> tuple[str, int]:
    """Parse a request for devices: ``KIND`` or ``KIND=NUMBER``."""
    kind, _, count = word.partition("=")
    if not kind or not (count or "1").isdecimal() or int(count or "1") < 1:
        msg = f"{word!r} is no request for devices: write KIND or KIND=NUMBER"
        raise click.BadParameter(msg)
    return kind, int(count or "1")


def _parsed(parse: Callable[[str], _T], word: str) -> _T:
    try:
        return parse(word)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_PLUGINS = "fiber._plugins.manager"
_BACKEND_OPTIONS = "fiber.backend_options"
_GIVEN = "fiber.backend_options.given"
_log = logging.getLogger("fiber")


@attrs.frozen
class GivenOption:
    """A backend's option as given on the command line."""

    #: its flag, such as ``--namespace``
    flag: str
    #: its value
    value: str
    #: canonical names of the backends that have it
    backends: tuple[str, ...]


class BackendCommand(click.Command):
    """Command with the options of installed backends after its own."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List its own options and arguments, then those of backends."""
        own = super().get_params(ctx)
        if _BACKEND_OPTIONS not in ctx.meta:
            ctx.meta[_PLUGINS] = _load()
            taken = {word for param in own for word in param.opts}
            ctx.meta[_BACKEND_OPTIONS] = _options(ctx.meta[_PLUGINS], str(self.name), taken)
        added: list[click.Parameter] = ctx.meta[_BACKEND_OPTIONS]
        return [*own, *added]


def loaded_plugins() -> Plugins:
    """Return the plugins that the running command has loaded, or load them."""
    context = click.get_current_context(silent=True)
    found: Plugins | None = None if context is None else context.meta.get(_PLUGINS)
    return _load() if found is None else found


def options_given(info: BackendInfo) -> dict[str, tuple[str, str]]:
    """Return the backend's options given to the running command: flag and value by key.

    Raises:
        click.UsageError: an option is another backend's.
    """
    context = click.get_current_context(silent=True)
    given: list[GivenOption] = [] if context is None else context.meta.get(_GIVEN, [])
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
    """Make an option for each flag, which several backends may share."""
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
            callback=_record(flag, tuple(owners)),
        )
        for flag, (owners, text) in sorted(found.items())
    ]


def _record(flag: str, owners: tuple[str, ...]) -> Any:
    def record(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_GIVEN, []).append(GivenOption(flag, value, owners))

    return record


def _declared(info: BackendInfo) -> list[tuple[str, str, Mapping[str, Any]]]:
    """List key, flag and metadata of a backend's settings that are options."""
    return [
        (key, str(field.metadata["option"]), field.metadata)
        for key, field in settings_of(info.config or object).items()
        if field.metadata.get("option")
    ]
