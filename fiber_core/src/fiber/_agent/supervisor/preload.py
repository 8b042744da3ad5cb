"""Modules that are imported before the first fork, so that every child has them at no cost."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["PreloadRequests", "preload", "request"]

_requested: list[str] = []


def request(modules: Iterable[str]) -> None:
    """Have modules imported by supervisors before the next process starts."""
    _requested.extend(modules)


class PreloadRequests:
    """Passes requested modules on to one backend, each module once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sent = 0

    def send(self) -> None:
        """Pass on the modules requested since the last call."""
        if self._sent < len(_requested):
            new = tuple(_requested[self._sent :])
            self._sent += len(new)
            self._backend.preload(new)


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
