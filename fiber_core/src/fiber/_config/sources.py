"""Origins of settings, and the reader of the configuration file, which keeps them.

Apart from :mod:`~fiber._config.convert`, so that parsing of files stands by itself.
"""

from __future__ import annotations

import enum
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fiber._base import values
from fiber._base.log import lazy_logger
from fiber.exceptions import ConfigError

#: the configuration file looked for in the working directory
FILE_NAME = ".fiberconfig"
#: the section of a file that holds the core's own keys; lines before any section belong to it
DEFAULT_SECTION = "default"

_PYPROJECT = "pyproject.toml"
_log = lazy_logger("fiber.config")


class OriginKind(enum.Enum):
    """Kind of place that a value comes from, weakest first."""

    #: not set
    DEFAULT = "default"
    #: not set, but found out (the backend)
    DETECTED = "detected"
    #: ``.fiberconfig`` or ``[tool.fiber]``
    FILE = "file"
    #: a ``FIBER_…`` variable
    ENVIRONMENT = "environment"
    #: an argument to ``fiber.init``
    ARGUMENT = "argument"
    #: an option of the ``fiber`` command
    OPTION = "option"


@values.frozen
class Origin:
    """Place where a value was set; ``str()`` of it is used in errors and by ``fiber config``."""

    #: the kind of place
    kind: OriginKind
    #: name of the argument, variable or option, or ``path:line``; empty for defaults
    where: str = ""

    def __str__(self) -> str:
        if self.kind in {OriginKind.DEFAULT, OriginKind.DETECTED}:
            return str(self.kind.value)
        if self.kind is OriginKind.ENVIRONMENT:
            return f"environment {self.where}"
        if self.kind is OriginKind.ARGUMENT:
            return f"argument {self.where} to fiber.init"
        if self.kind is OriginKind.OPTION:
            return f"option {self.where}"
        return self.where


@values.frozen
class RawValue:
    """Value as it was written, before conversion, with its origin."""

    #: text, or a Python value from code or TOML
    value: Any
    #: where it was written
    origin: Origin


@values.frozen
class FileSettings:
    """Contents of a configuration file by section and key, not validated."""

    #: the file, or None where there is none
    path: Path | None = None
    #: keys and values by section
    sections: Mapping[str, Mapping[str, RawValue]] = values.field(factory=dict)
    #: origin of each section's first line
    origins: Mapping[str, Origin] = values.field(factory=dict)


def read_file(directory: str | Path, trusted: Iterable[Path] = ()) -> FileSettings:
    """Read the configuration file of a directory.

    Its settings can name programs that run as this user (a ``ProxyCommand``, the command of a
    kubeconfig), so a file of others is refused, and one that they may replace or write to.

    Args:
        directory: the working directory of the program.
        trusted: folders in which, and below which, a file is read whoever wrote it.

    Returns:
        ``.fiberconfig`` where it exists, else ``[tool.fiber]`` of ``pyproject.toml``, else nothing.

    Raises:
        ConfigError: the file is another user's, cannot be read, or a line is malformed.
    """
    folder = Path(directory)
    own, shared = folder / FILE_NAME, folder / _PYPROJECT
    if own.is_file():
        text, found = _text(own)
        _require_trust(own, found, trusted)
        if shared.is_file() and _read_pyproject(shared, _text(shared)[0]).path is not None:
            _log.debug("%s is used, [tool.fiber] of %s is not", own, shared)
        return _read_ini(own, text)
    if shared.is_file():
        text, found = _text(shared)
        settings = _read_pyproject(shared, text)
        # a project file without a table for fiber is nobody's concern
        if settings.path is not None:
            _require_trust(shared, found, trusted)
        return settings
    return FileSettings()


def _text(path: Path) -> tuple[str, os.stat_result]:
    """Return the text of a file, and the status of the very file that was read."""
    try:
        with path.open(encoding="utf-8") as file:
            # not by the codec "utf-8-sig", which is a module
            return file.read().removeprefix("\ufeff"), os.fstat(file.fileno())
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error


def _require_trust(path: Path, found: os.stat_result, trusted: Iterable[Path]) -> None:
    """Refuse a file unless this user or root alone can have written it, or its folder is trusted."""
    folder = path.parent.resolve()
    if any(folder.is_relative_to(one.resolve()) for one in trusted):
        return
    users = {0, os.getuid()}
    if os.getuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    # the entry itself may be a link, by which others would choose among the files of this user
    for what, status in ((path, found), (path, path.lstat()), (folder, folder.stat())):
        why = _distrust(what, status, users)
        if why:
            msg = (
                f"{path} is not read: {why}, and its settings can name programs that run as user "
                f"{_user_name(os.getuid())}; change that (chown, chmod), or if you trust all who "
                f"may write there, set FIBER_TRUSTED_FOLDERS={folder}"
            )
            raise ConfigError(msg)


def _distrust(path: Path, found: os.stat_result, users: Iterable[int]) -> str:
    """Return why others than some users can have changed a file or an entry of a folder, or ""."""
    mode = found.st_mode
    if found.st_uid not in users:
        return f"{path} belongs to user {_user_name(found.st_uid)}"
    # a link has no mode; in a sticky folder nobody replaces what is another's
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    if mode & stat.S_IWOTH:
        return f"every user may write to {path}"
    if mode & stat.S_IWGRP and (group := _shared_group(found.st_gid, users)):
        return f"group {group} may write to {path}"
    return ""


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        # as in a container, which knows few users of its host
        return str(number)


def _shared_group(number: int, users: Iterable[int]) -> str:
    """Return the name of a group with others in it, or "" for the private group of a user.

    A private group is named as its user, with nobody else listed; where its name is not known, as in
    a container, it has its user's number. A group such as ``users`` lists nobody either: those who
    have it as their first one are not listed.
    """
    import grp

    names = {_user_name(user) for user in users}
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return "" if number in users else str(number)
    is_private = (number == 0 or group.gr_name in names) and names.issuperset(group.gr_mem)
    return "" if is_private else group.gr_name


def _read_ini(path: Path, text: str) -> FileSettings:
    sections: dict[str, dict[str, RawValue]] = {}
    origins: dict[str, Origin] = {}
    section = DEFAULT_SECTION
    for number, kind, name, value in _ini_items(path, text):
        origin = Origin(OriginKind.FILE, f"{path}:{number}")
        if kind == "section":
            section = name
            origins.setdefault(section, origin)
            sections.setdefault(section, {})
            continue
        keys = sections.setdefault(section, {})
        origins.setdefault(section, origin)
        if name in keys:
            msg = f"{name!r} is set twice: {keys[name].origin} and {origin}; remove one"
            raise ConfigError(msg)
        keys[name] = RawValue(value, origin)
    return FileSettings(path, sections, origins)


def _ini_items(path: Path, text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield ``(line, "section" or "key", name, value)``; indented lines continue a value."""
    pending: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if pending and line[0] in " \t" and not re.match(r"\s+[\w-]+\s*=", line):
            pending[2].append(stripped)
            continue
        if pending:
            yield pending[0], "key", pending[1], _unquoted("\n".join(pending[2]))
            pending = None
        if stripped.startswith("[") and stripped.endswith("]"):
            yield number, "section", stripped[1:-1].strip().lower(), ""
            continue
        match = re.match(r"([\w-]+)\s*[=:]\s*(.*)$", stripped)
        if match is None:
            msg = f"{path}:{number}: expected 'key = value' or '[section]', got {stripped!r}"
            raise ConfigError(msg)
        value = match.group(2).strip()
        pending = (number, match.group(1).lower(), [value] if value else [])
    if pending:
        yield pending[0], "key", pending[1], _unquoted("\n".join(pending[2]))


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


#: found in every text with a table ``tool.fiber``, in whichever of TOML's ways it is written, and
#: seldom in others
_MAY_HAVE_TABLE = r"""(?m)tool["']?\s*\.\s*["']?fiber(?![\w-])|^\s*(\[\s*["']?tool["']?\s*\]|["']?tool["']?\s*=)|\\[uU]"""


def _read_pyproject(path: Path, text: str) -> FileSettings:
    if not re.search(_MAY_HAVE_TABLE, text):
        # avoids a TOML parser, which takes 6 ms, in projects without a table for fiber
        return FileSettings()
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text).get("tool", {}).get("fiber")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        msg = f"{path} is no valid TOML: {error}"
        raise ConfigError(msg) from error
    if table is None:
        return FileSettings()
    if not isinstance(table, dict):
        msg = f"{path}: [tool.fiber] must be a table, got {table!r}"
        raise ConfigError(msg)
    sections: dict[str, dict[str, RawValue]] = {DEFAULT_SECTION: {}}
    origins = {DEFAULT_SECTION: _toml_origin(path, text, "", "")}
    for key, value in table.items():
        if isinstance(value, dict):
            origins[key] = _toml_origin(path, text, key, "")
            sections[key] = {
                name: RawValue(inner, _toml_origin(path, text, key, name))
                for name, inner in value.items()
            }
        else:
            sections[DEFAULT_SECTION][key] = RawValue(value, _toml_origin(path, text, "", key))
    return FileSettings(path, sections, origins)


def _toml_origin(path: Path, text: str, table: str, key: str) -> Origin:
    """Find the line of a key in the text, since the parser keeps no line numbers."""
    heading = f"tool.fiber.{table}" if table else "tool.fiber"
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        if header:
            inside = re.sub(r"[\s\"']", "", header.group(1)) == heading
            if inside and not key:
                return Origin(OriginKind.FILE, f"{path}:{number}")
        elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return Origin(OriginKind.FILE, f"{path}:{number}")
    return Origin(OriginKind.FILE, str(path))
