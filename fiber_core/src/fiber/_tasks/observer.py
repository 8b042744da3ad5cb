"""What a dispatcher tells whoever employs its workers."""

from __future__ import annotations

from typing import Protocol


class Staff(Protocol):
    """Who employs the workers, and hears how they do; called on the handler thread."""

    def knows(self, ident: str) -> bool:
        """True where the process is one of its workers."""

    def is_up(self, ident: str) -> None:
        """A worker asked for work for the first time."""

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed."""

    def is_cut(self, ident: str) -> None:
        """A worker's connection ended."""

    def is_retired(self, ident: str) -> None:
        """A worker was told to exit."""
