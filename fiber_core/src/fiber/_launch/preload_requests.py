"""Modules that the program wants imported where its processes are forked from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["Teller", "want"]

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
