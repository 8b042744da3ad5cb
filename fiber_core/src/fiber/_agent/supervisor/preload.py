"""Imports modules before the first fork, so that every child has them at no cost.

Modules that the program wants imported where its processes are forked from.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["Teller", "preload", "want"]

_wanted: list[str] = []


def want(modules: Iterable[str]) -> None:
    """Want modules imported before the next process starts."""
    _wanted.extend(modules)


class Teller:
    """Tells one backend what is wanted, each module once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._told = 0

    def tell(self) -> None:
        """Tell of what is new."""
        if self._told < len(_wanted):
            new = tuple(_wanted[self._told :])
            self._told += len(new)
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
