"""Modules that are imported before the first fork, so that every child has them at no cost."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["PreloadRequests", "preload", "request"]

_requested: list[str] = []
#: beginnings of the names of modules of objects that travel to processes: a process that gets one
#: needs most of those that its parent has, some forty, and imports what its supervisor has not
_OBJECTS = (
    "fiber._objects.",
    "fiber.connection",
    "fiber.queues",
    "fiber.sharedctypes",
    "fiber.sharing",
    "fiber.synchronize",
)


def request(modules: Iterable[str]) -> None:
    """Have modules imported by supervisors before the next process starts."""
    _requested.extend(modules)


class PreloadRequests:
    """Passes requested modules, and those of objects in use, on to one backend, each module once.

    Args:
        backend: the backend.
        loaded: the modules of this process.
    """

    def __init__(self, backend: Backend, loaded: Mapping[str, object] = sys.modules) -> None:
        self._backend = backend
        self._loaded = loaded
        self._sent = 0
        self._objects: set[str] = set()
        self._seen = 0

    def send(self) -> None:
        """Pass on the modules requested, and those of objects imported, since the last call."""
        new = [*_requested[self._sent :], *self._new_objects()]
        self._sent = len(_requested)
        if new:
            self._backend.preload(tuple(new))

    def _new_objects(self) -> list[str]:
        # to look is cheap as long as nothing was imported
        if self._seen == len(self._loaded):
            return []
        self._seen = len(self._loaded)
        new = [
            name
            for name in list(self._loaded)
            if name.startswith(_OBJECTS) and name not in self._objects
        ]
        self._objects.update(new)
        return new


def preload(modules: Iterable[str]) -> dict[str, str]:
    """Import modules; returns those that failed, with the reason."""
    failures = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            # whatever a module does while it is imported, children can do without the head start
            failures[name] = f"{type(error).__name__}: {error}"
    # a module may have left threads behind; what a fork makes of them is its author's affair
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return failures
