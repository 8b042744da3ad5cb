"""What a pool asks of memory that its workers on this host map, and from which size on it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fiber._wire import frames

#: bytes from which on something is laid: below, mapping it costs as much as sending it
LARGE = 2**20
#: bytes that are kept: of functions that no call has for the next call, of arguments for one call;
#: the last function and the first argument are in any case
KEPT = 256 * 2**20


class Laid(Protocol):
    """Bytes in memory that all processes of a host map and none changes."""

    @property
    def place(self) -> bytes:
        """By which others find it."""

    @property
    def size(self) -> int:
        """How many bytes."""

    def view(self) -> memoryview:
        """The bytes, to read."""

    def private(self) -> memoryview:
        """The bytes, to read and to write; what is written is seen nowhere else."""

    def close(self) -> None:
        """Let nobody else find it; views stay valid."""


class Memory(Protocol):
    """Lays bytes, and finds those that others laid."""

    def lay(self, segments: Sequence[frames.Buffer]) -> Laid | None:
        """Lay bytes; None where there is no room for them."""

    def find(self, place: bytes) -> Laid | None:
        """What is at a place; None where it is not to be had here."""
