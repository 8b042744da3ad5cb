"""Modules of the parent for a child on the same host that cannot find them by itself.

A child has its parent's ``sys.path``, and still misses modules that the parent loaded in another
way: by file (pytest's importlib mode), by an import hook. A finder at the end of the child's
``sys.meta_path`` asks where such a module is, and only for those whose top-level package its parent
has loaded from the program's own files: a missing optional dependency costs no question.

Libraries that the main module uses are named for the process that forks the children, which imports
them once for all (:func:`libraries_of_main`).
"""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import re
import site
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

#: this package's own name
_OURS = __name__.partition(".")[0]
_seen: tuple[int, str] = (-1, "")
_names: frozenset[str] = frozenset()


def installed_folders() -> tuple[str, ...]:
    """Folders of the standard library and of installed packages, as beginnings of paths."""
    # site is there since the interpreter's start; sysconfig takes a millisecond of a first result
    folders = str(Path(os.__file__).parent), *site.getsitepackages()
    return tuple(f"{folder}{os.sep}" for folder in folders)


#: names of folders of installed packages, wherever they are
_PACKAGES = frozenset({"site-packages", "dist-packages"})
#: folder of the descriptors that a process has open; other systems than Linux have none
_DESCRIPTORS = "/proc/self/fd"
#: devices that any process may have open and share with its forks
_COMMON_DEVICES = r"/dev/(?:console|full|mqueue/|null|ptmx|pts/|random|shm/|tty|urandom|zero)"


def is_in_package(path: object) -> bool:
    """True for the file of an installed package, which the standard library is not."""
    # no Path, which takes longer: asked for many modules at a program's start
    return isinstance(path, str) and not _PACKAGES.isdisjoint(path.split(os.sep))  # noqa: PTH206 - as said


def file_of(module: object) -> str | None:
    """Path of a loaded module's file; None where it has none.

    A program may put any object into ``sys.modules``: asked for an attribute, it may raise, answer with
    something else, or import what it stands for.
    """
    try:
        found = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    return found if isinstance(found, str) else None


def libraries_of_main(loaded: Mapping[str, object] = sys.modules) -> list[str]:
    """Names of the installed packages' modules to which the main module refers, or a module of the program that it uses.

    A process that has imported them can be forked, as it has done nothing else with them. That is not so where
    the import itself opens a device, such as a GPU: there are none while this process has one open, which
    may be why. Nor are there any on systems where a fork without ``exec()`` is not safe in general.

    Args:
        loaded: modules of this process by name.
    """
    if not os.path.isdir(_DESCRIPTORS) or _has_device_open():  # noqa: PTH112 - at each start, perhaps
        return []
    installed = installed_folders()
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = ["__main__"]
    while waiting:
        for value in _values(loaded.get(waiting.pop())):
            name = _module_of(value)
            if name in seen or name.partition(".")[0] == _OURS:
                continue
            seen.add(name)
            file = _importable_file(name, loaded.get(name))
            if file is None:
                continue
            if is_in_package(file):
                found[name] = None
            elif not file.startswith(installed):
                waiting.append(name)
    return list(found)


def _values(module: object) -> list[object]:
    if not issubclass(type(module), ModuleType):
        return []
    # what an import puts there by itself, and what IPython puts in place of builtins, is not the program's
    return [
        value
        for name, value in list(vars(module).items())
        if not name.startswith("__") and not hasattr(builtins, name)
    ]


def _module_of(value: object) -> str:
    if type(value) is ModuleType:
        return value.__name__
    # an object is not asked for an attribute, not even for its class as isinstance() does: it may compute the
    # answer, or import what it stands for
    is_defined = issubclass(type(value), (type, FunctionType))
    name = getattr(value if is_defined else type(value), "__module__", "")
    return name if type(name) is str else ""


def _importable_file(name: str, module: object) -> str | None:
    """File of a module that another process finds by this name; None for one that was made in another way."""
    spec = vars(module).get("__spec__") if issubclass(type(module), ModuleType) else None
    return file_of(module) if isinstance(spec, ModuleSpec) and spec.name == name else None


def _has_device_open() -> bool:
    for entry in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - as above
        try:
            path = os.readlink(f"{_DESCRIPTORS}/{entry}")  # noqa: PTH115 - as above
        except OSError:
            # the folder's own descriptor
            continue
        if path.startswith("/dev/") and not re.match(_COMMON_DEVICES, path):
            return True
    return False


def own_names() -> frozenset[str]:
    """Top-level names of loaded modules that are not installed packages."""
    global _seen, _names  # noqa: PLW0603 - a cache, renewed when modules were added
    # number of modules, and the one that was added last
    now = len(sys.modules), next(reversed(sys.modules))
    if now != _seen:
        _seen = now
        installed = installed_folders()
        _names = frozenset(
            name.partition(".")[0]
            for name, module in list(sys.modules.items())
            if (origin := file_of(module)) and not origin.startswith(installed)
        )
    return _names - {"__main__", "__mp_main__"}


def describe(name: str) -> dict[str, Any]:
    """Path and locations of a loaded module of the program; {} for others."""
    if not _is_own(name):
        return {}
    module = sys.modules[name]
    locations = getattr(module, "__path__", None)
    return {
        "path": file_of(module),
        "locations": None if locations is None else list(locations),
    }


def source_of(name: str) -> str | None:
    """Source of a loaded module of the program by its own loader, also inside an archive."""
    if not _is_own(name):
        return None
    spec = importlib.util.find_spec(name)
    # not every loader has any
    read = getattr(None if spec is None else spec.loader, "get_source", None)
    source: str | None = None if read is None else read(name)
    return source


def _is_own(name: str) -> bool:
    return name in sys.modules and name.partition(".")[0] in own_names()


class ParentFinder:
    """Finder that asks the parent for modules; last in ``sys.meta_path``.

    Args:
        names: top-level names worth asking for.
        ask: sends a question, returns the answer's JSON; raises OSError where none comes.
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
        """Spec of the module from the parent's file, or None."""
        if fullname.partition(".")[0] not in self._names:
            return None
        found = json.loads(self._ask(json.dumps({"module": fullname}).encode()))
        if not found:
            return None
        origin, locations = found["path"], found["locations"]
        if origin is None:
            # a package without a file is its folders
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = locations or []
            return spec
        if not Path(origin).exists():
            # inside an archive, whose own finder was asked before
            return None
        return importlib.util.spec_from_file_location(
            fullname, origin, submodule_search_locations=locations
        )
