"""The value of a block in one process: unpickled once, for all who hold the block there."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from fiber._objects.blocks import contents


class Readable(Protocol):
    """A block, at its owner or elsewhere."""

    def body(self) -> memoryview:
        """Its bytes, fetched where they are not here yet.

        Raises:
            PeerLostError: the process that it lives in is gone.
        """


class Cell:
    """Keeps the value as long as a handle does, or the block that has read it."""

    def __init__(self, block: Readable) -> None:
        self._block = block
        self._lock = threading.RLock()
        self._values: list[Any] = []

    def value(self) -> Any:
        """The value.

        Raises:
            PeerLostError: its process was gone before it was here.
            Exception: what unpickling it raised.
        """
        if not self._values:
            with self._lock:
                if not self._values:
                    self._values.append(contents.read(self._block.body()))
        return self._values[0]


class Reading:
    """The cell of a block, while anybody has it.

    Args:
        block: the block.
        keeps: True where the cell stays without a handle as well, until :meth:`forget`.
    """

    def __init__(self, block: Readable, *, keeps: bool = False) -> None:
        self._block = block
        self._lock = threading.Lock()
        self._cell: weakref.ref[Cell] | None = None
        self._keeps = keeps
        self._kept: Cell | None = None

    def cell(self) -> Cell:
        """The cell that all handles in this process share."""
        with self._lock:
            found = None if self._cell is None else self._cell()
            if found is None:
                found = Cell(self._block)
                self._cell = weakref.ref(found)
            if self._keeps:
                self._kept = found
            return found

    def forget(self) -> None:
        """Keep the cell no more."""
        with self._lock:
            self._keeps = False
            # dies with this frame, when the lock is free
            found, self._kept = self._kept, None
        del found
