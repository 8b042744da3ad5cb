"""Modules that a child cannot import by itself come from its parent, over their connection.

A child has its parent's ``sys.path``, and still misses what the parent loaded in another way: by
file (pytest's importlib mode), from a folder that this host does not have, by an import hook. A
finder at the end of the child's ``sys.meta_path`` asks for such a module, and only for those whose
top-level package its parent has loaded from the program's own files: a missing optional dependency
costs no question.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_counted = -1
_names: frozenset[str] = frozenset()


def own_names() -> frozenset[str]:
    """Top-level names of the loaded modules that belong to no installation of Python's."""
    global _counted, _names  # noqa: PLW0603 - a cache, renewed when modules were added
    if len(sys.modules) != _counted:
        _counted = len(sys.modules)
        installed = tuple({f"{path}{os.sep}" for path in sysconfig.get_paths().values()})
        _names = frozenset(
            name.partition(".")[0]
            for name, module in list(sys.modules.items())
            if (origin := getattr(module, "__file__", None)) and not origin.startswith(installed)
        )
    return _names - {"__main__", "__mp_main__"}


def describe(name: str, *, with_source: bool) -> dict[str, Any]:
    """What a child needs to load a module of ours; empty where we have not loaded it ourselves."""
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] not in own_names():
        return {}
    origin = getattr(module, "__file__", None)
    locations = getattr(module, "__path__", None)
    found: dict[str, Any] = {
        "path": origin,
        "locations": None if locations is None else list(locations),
    }
    if with_source:
        found["source"] = _source(name, origin)
    return found


def _source(name: str, origin: str | None) -> str | None:
    if origin is None:
        return None
    try:
        with open(origin, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError):
        # inside an archive, or no text: its own loader knows
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        return loader.get_source(name) if isinstance(loader, importlib.abc.InspectLoader) else None


class ParentFinder(importlib.abc.MetaPathFinder):
    """Asks the parent for modules; last in ``sys.meta_path``.

    Args:
        names: top-level names worth asking for.
        ask: sends a question, returns the answer's JSON; raises OSError where nobody answers.
    """

    def __init__(self, names: frozenset[str], ask: Callable[[bytes], bytes]) -> None:
        self._names = names
        self._ask = ask

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The module as the parent has it, or None."""
        if fullname.partition(".")[0] not in self._names:
            return None
        found = json.loads(self._ask(json.dumps({"module": fullname}).encode()))
        if not found:
            return None
        origin, locations = found["path"], found["locations"]
        if origin is not None and Path(origin).exists():
            return importlib.util.spec_from_file_location(
                fullname, origin, submodule_search_locations=locations
            )
        if origin is not None and found.get("source") is None:
            return None
        loader = _SentSource(origin, found.get("source"))
        spec = ModuleSpec(fullname, loader, origin=origin, is_package=locations is not None)
        spec.has_location = origin is not None
        return spec


class _SentSource(importlib.abc.InspectLoader):
    """Loads a module from source that came over the connection; a namespace has none."""

    def __init__(self, origin: str | None, source: str | None) -> None:
        self._origin = origin
        self._source = source or ""

    def get_source(self, fullname: str) -> str:
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        # line numbers and the file's name in tracebacks are the parent's
        return compile(self._source, self._origin or f"<{fullname}>", "exec")
