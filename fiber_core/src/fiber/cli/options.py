"""Options that several commands share, and what their words mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click

from fiber._config.convert import parse_cpu, parse_memory
from fiber.model import Volume

__all__ = ["backend_option", "cpus", "device", "json_option", "megabytes", "variable", "volume"]

_T = TypeVar("_T")

#: where a volume is mounted when nothing else is said
_MOUNT = "/persistent"

backend_option = click.option("--backend", metavar="BACKEND", help="Backend to use.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def cpus(word: str) -> float:
    """CPUs."""
    return _parsed(parse_cpu, word)


def megabytes(word: str) -> int:
    """Memory in MB."""
    return _parsed(parse_memory, word)


def volume(word: str) -> Volume:
    """A volume and where it is mounted."""
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


def variable(word: str) -> tuple[str, str]:
    """A variable of the environment and its value; ours, where none is written."""
    name, is_given, value = word.partition("=")
    if not name:
        msg = f"{word!r} is no variable: write NAME=VALUE, or NAME for the value it has here"
        raise click.BadParameter(msg)
    if not is_given and name not in os.environ:
        msg = f"{name} is not set here: write {name}=VALUE"
        raise click.BadParameter(msg)
    return name, value if is_given else os.environ[name]


def device(word: str) -> tuple[str, int]:
    """A kind of devices and how many of them."""
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
