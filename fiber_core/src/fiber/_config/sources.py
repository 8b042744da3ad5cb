"""Origins of settings, and the reader of the configuration file, which keeps them.

Apart from :mod:`~fiber._config.convert`, so that parsing of files stands by itself.
"""

from __future__ import annotations

import enum
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fiber._base import values
from fiber.exceptions import ConfigError

__all__ = ["FILE_NAME", "FileSettings", "Origin", "OriginKind", "RawValue", "read_file"]

#: the configuration file looked for in the working directory
FILE_NAME = ".fiberconfig"
#: the section of a file that holds the core's own keys; lines before any section belong to it
DEFAULT_SECTION = "default"

_PYPROJECT = "pyproject.toml"
_log = logging.getLogger("fiber.config")


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


def read_file(directory: str | Path) -> FileSettings:
    """Read the configuration file of a directory.

    Args:
        directory: the working directory of the program.

    Returns:
        ``.fiberconfig`` where it exists, else ``[tool.fiber]`` of ``pyproject.toml``, else nothing.

    Raises:
        ConfigError: the file cannot be read, or a line is malformed.
    """
    folder = Path(directory)
    own, shared = folder / FILE_NAME, folder / _PYPROJECT
    if own.is_file():
        if shared.is_file() and _read_pyproject(shared).path is not None:
            _log.debug("%s is used, [tool.fiber] of %s is not", own, shared)
        return _read_ini(own)
    if shared.is_file():
        return _read_pyproject(shared)
    return FileSettings()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error


def _read_ini(path: Path) -> FileSettings:
    sections: dict[str, dict[str, RawValue]] = {}
    origins: dict[str, Origin] = {}
    section = DEFAULT_SECTION
    for number, kind, name, value in _ini_items(path):
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


def _ini_items(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield ``(line, "section" or "key", name, value)``; indented lines continue a value."""
    pending: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(_text(path).splitlines(), 1):
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


def _read_pyproject(path: Path) -> FileSettings:
    text = _text(path)
    if "fiber" not in text:
        # avoids importing a TOML parser in projects without a table for fiber
        return FileSettings()
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text).get("tool", {}).get("fiber")
    except tomllib.TOMLDecodeError as error:
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
