"""Hosts of the ``hosts`` setting: a list of names with slots, or the path of a hosts file."""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from fiber.exceptions import ConfigError
from fiber_ssh.config import SshConfig

_KEYS = ("slots", "address", "user", "port", "key", "python", "directory", "gpus")
_SECRET = ("password", "passphrase", "passwd")


@attrs.frozen(kw_only=True)
class Host:
    """Settings of one host; where they are None, the ssh configuration decides."""

    #: name, by which the ssh configuration is searched too
    name: str
    #: jobs that run at once; None for the number of its CPUs
    slots: int | None = None
    #: host name or address to connect to
    address: str | None = None
    #: user to log in as
    user: str | None = None
    #: port of its sshd
    port: int | None = None
    #: file of the private key
    key: str | None = None
    #: its Python with fiber installed
    python: str = "python3"
    #: working directory of its jobs
    directory: str | None = None
    #: environment variables of its jobs
    env: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: indices of the GPUs that may be used; None for all
    gpus: tuple[int, ...] | None = None


def read_hosts(config: SshConfig) -> tuple[Host, ...]:
    """The hosts of a setting.

    Args:
        config: the settings.

    Raises:
        ConfigError: there are none, or an entry is invalid.
    """
    text = config.hosts.strip()
    if not text:
        msg = (
            "no ssh hosts are named; set FIBER_SSH_HOSTS to a list such as 'alpha:8,beta:8', or to "
            "the path of a hosts file"
        )
        raise ConfigError(msg)
    path = _file(text)
    if path is not None:
        found = _parse_file(path)
    elif "/" in text or text.endswith((".ini", ".txt")):
        msg = f"hosts is {text!r}, and there is no such file"
        raise ConfigError(msg)
    else:
        found = [_parse_word(word) for word in text.replace(",", " ").split()]
    names = [host.name for host in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"hosts names {', '.join(twice)} more than once; give it all its slots at once"
        raise ConfigError(msg)
    if not found:
        msg = f"{text} names no hosts; give each a section [NAME] with its slots"
        raise ConfigError(msg)
    return tuple(_with_defaults(host, config) for host in found)


def _file(text: str) -> Path | None:
    """The file of a path; None for a list of hosts, which may be longer than a name can be."""
    try:
        # "~" of no user stays as it is
        path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises for it
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def _with_defaults(host: Host, config: SshConfig) -> Host:
    return attrs.evolve(
        host, python=host.python or config.python, directory=host.directory or config.directory
    )


def _parse_word(word: str) -> Host:
    """Parse ``[user@]host[:slots]``, an IPv6 address in brackets."""
    user, at, rest = word.rpartition("@")
    name, slots = rest, ""
    if rest.startswith("["):
        name, bracket, slots = rest[1:].partition("]")
        if not bracket or (slots and not slots.startswith(":")):
            msg = f"hosts has {word!r}, expected [ADDRESS]:SLOTS"
            raise ConfigError(msg)
        slots = slots[1:]
    elif rest.count(":") > 1:
        msg = f"hosts has {word!r}; write an IPv6 address in brackets, [{rest}] or [{rest}]:SLOTS"
        raise ConfigError(msg)
    else:
        name, _, slots = rest.partition(":")
    if not name or (at and not user):
        msg = f"hosts has {word!r}, expected [USER@]HOST[:SLOTS]"
        raise ConfigError(msg)
    return _host(name, {"user": user, "slots": slots}, f"hosts ({word})")


def _parse_file(path: Path) -> list[Host]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        msg = f"hosts file {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    lines = [line.strip() for line in text.splitlines()]
    if not any(line.startswith("[") for line in lines):
        return list(_parse_lines(lines, path))
    parser = configparser.ConfigParser(
        default_section="*", interpolation=None, comment_prefixes=("#", ";"), delimiters=("=",)
    )
    # names of variables are case-sensitive
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        msg = f"hosts file {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    return [_host(name, dict(parser[name]), f"{path} [{name}]") for name in parser.sections()]


def _parse_lines(lines: Iterable[str], path: Path) -> Iterable[Host]:
    """Parse lines of ``HOST key=value …``, as MPI's hostfiles have them."""
    for number, line in enumerate(lines, 1):
        origin = f"{path} line {number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            msg = f"{origin} makes no sense: {error}"
            raise ConfigError(msg) from error
        if not words:
            continue
        values = {}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                msg = f"{origin}: {word!r} is no KEY=VALUE"
                raise ConfigError(msg)
            values[key] = value
        yield _host(words[0], values, origin)


def _host(name: str, values: Mapping[str, str], origin: str) -> Host:
    env = {}
    fields = {}
    for key, value in values.items():
        if key.startswith("env."):
            env[key.removeprefix("env.")] = value
        elif key.lower() in _SECRET:
            msg = (
                f"{origin}: {key!r} is never read from configuration; log in by key, and hold a "
                "key with a passphrase in ssh-agent"
            )
            raise ConfigError(msg)
        elif key not in _KEYS:
            allowed = ", ".join((*_KEYS, "env.NAME"))
            msg = f"{origin}: unknown key {key!r}, allowed are {allowed}"
            raise ConfigError(msg)
        elif value:
            fields[key] = value
    return Host(
        name=name,
        slots=_number(fields.get("slots"), "slots", origin),
        address=fields.get("address"),
        user=fields.get("user"),
        port=_number(fields.get("port"), "port", origin),
        key=fields.get("key"),
        python=fields.get("python", ""),
        directory=fields.get("directory"),
        env=env,
        gpus=_indices(fields.get("gpus"), origin),
    )


def _number(text: str | None, key: str, origin: str) -> int | None:
    if not text:
        return None
    if not _is_count(text) or int(text) < 1:
        msg = f"{origin}: {key} is {text!r}, expected a whole number from 1 on"
        raise ConfigError(msg)
    return int(text)


def _is_count(text: str) -> bool:
    # other scripts' digits are none here, and no number has so many that int() refuses it
    return text.isascii() and text.isdigit() and len(text) < 10


def _indices(text: str | None, origin: str) -> tuple[int, ...] | None:
    """Parse ``none``, or indices of GPUs such as ``0,1``."""
    if text is None:
        return None
    if text == "none":
        return ()
    words = text.replace(",", " ").split()
    if not all(map(_is_count, words)):
        msg = f"{origin}: gpus is {text!r}, expected indices such as '0,1', or 'none'"
        raise ConfigError(msg)
    return tuple(sorted({int(word) for word in words}))
