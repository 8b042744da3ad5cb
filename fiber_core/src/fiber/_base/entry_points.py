"""Entry points and versions of installed distributions, read without ``importlib.metadata``.

The stdlib's module imports thirty others, a tenth of the time to a program's first result. It is
used all the same where something else than folders may offer distributions: an archive on
``sys.path``, or another finder on ``sys.meta_path``. Published backends are known by name without being
installed, from a data file.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fiber._base import values

__all__ = ["EntryPoint", "KnownBackend", "entry_points", "known_backends", "load_object", "version"]

_INFO = (".dist-info", ".egg-info")


class EntryPoint:
    """Entry point of a distribution; the attributes' names are those of ``importlib.metadata``.

    Args:
        name: its name.
        value: ``module`` or ``module:attribute``.
        distribution: name of the distribution.
        version: the distribution's version, empty where it is not known.
    """

    __slots__ = ("distribution", "name", "value", "version")

    def __init__(self, name: str, value: str, distribution: str, version: str) -> None:
        self.name = name
        self.value = value
        self.distribution = distribution
        self.version = version

    @classmethod
    def of(cls, point: Any) -> EntryPoint:
        """Convert an entry point of ``importlib.metadata``; an instance of this class stays as it is."""
        if isinstance(point, cls):
            return point
        if point.dist is None:
            return cls(point.name, point.value, point.value, "")
        named = point.dist.metadata["Name"] or point.value
        return cls(point.name, point.value, named, point.dist.version)

    def load(self) -> Any:
        """Import the object that it names.

        Raises:
            ImportError: there is no such module.
            AttributeError: the module has no such attribute.
        """
        # without extras in brackets
        return load_object(self.value.partition("[")[0])


def load_object(reference: str) -> Any:
    """Import the object that ``module`` or ``module:attribute`` names.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such attribute.
    """
    module, _, attributes = reference.strip().partition(":")
    found: Any = importlib.import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        found = getattr(found, attribute)
    return found


def entry_points(group: str) -> list[EntryPoint]:
    """List the entry points of a group; of several distributions of one name, the first one's."""
    if not _only_folders():
        from importlib import metadata

        return [EntryPoint.of(point) for point in metadata.entry_points(group=group)]
    return [
        point for _, folder in _distributions(import_paths()) for point in _points(folder, group)
    ]


@functools.cache
def version(distribution: str) -> str:
    """Version of an installed distribution, as this program imports it.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.
    """
    if _only_folders():
        for name, folder in _distributions(import_paths()):
            found = _header(_read_headers(folder), "Version") if name == distribution else ""
            if found:
                return found
    from importlib import metadata

    return metadata.version(distribution)


def import_paths() -> list[str]:
    """Entries of ``sys.path`` without those that imports ignore, such as a ``Path``."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _only_folders() -> bool:
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if any(getattr(finder, "__name__", "") != "PathFinder" for finder in finders):
        return False
    return not any(path.endswith(".egg") or os.path.isfile(path) for path in import_paths())  # noqa: PTH113 - as below


def _distributions(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and metadata folders of distributions, in the order of ``sys.path``."""
    seen = set()
    for folder in dict.fromkeys(folders):
        try:
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith(_INFO))  # noqa: PTH208 - pathlib itself would be what takes time here
        except OSError:
            continue
        for name in names:
            distribution = re.sub(r"[-_.]+", "_", name.rpartition(".")[0].partition("-")[0]).lower()
            if distribution not in seen:
                seen.add(distribution)
                yield distribution, os.path.join(folder, name)  # noqa: PTH118 - as above


def _points(folder: str, group: str) -> Iterator[EntryPoint]:
    text = _read(folder, "entry_points.txt")
    if f"[{group}]" not in text:
        return
    headers = _read_headers(folder)
    name, number = _header(headers, "Name"), _header(headers, "Version")
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            yield EntryPoint(key.strip(), value.strip(), name or value.strip(), number)


def _read_headers(folder: str) -> str:
    return _read(folder, "METADATA") or _read(folder, "PKG-INFO")


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:  # noqa: PTH118 - as above
            return file.read()
    except OSError:
        return ""


def _header(text: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(.*?)\s*$", text.partition("\n\n")[0], re.MULTILINE)
    return found[1] if found else ""


@values.frozen(kw_only=True)
class KnownBackend:
    """A published backend."""

    #: canonical name
    name: str
    #: distribution to install
    distribution: str
    #: other accepted names
    aliases: tuple[str, ...] = values.field(default=(), converter=tuple)


@functools.cache
def known_backends() -> Mapping[str, KnownBackend]:
    """Return the published backends by canonical name."""
    # not on the way to a program's first result
    import json
    from pathlib import Path

    text = Path(__file__).with_name("known_backends.json").read_text(encoding="utf-8")
    found = json.loads(text)
    return {name: KnownBackend(name=name, **fields) for name, fields in found.items()}
