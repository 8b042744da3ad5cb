"""Where the blocks of one process are: small ones side by side, a large one by itself."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._objects.memory.arena import HEAD, Arena, Folder
from fiber._objects.memory.ranges import Ranges

if TYPE_CHECKING:
    from fiber._objects.store import Store

#: blocks begin at multiples of a cache line, so that none is slowed down by its neighbours' users
_LINE = 64
#: bytes of an arena for many blocks, and of the largest of these
_SHARED = 2**18
_LARGEST = 2**15


@values.frozen(eq=False)
class Block:
    """A part of an arena."""

    arena: Arena
    #: where it begins, and its bytes
    begin: int
    size: int

    @property
    def view(self) -> memoryview:
        """Its bytes, to read and write."""
        return memoryview(self.arena.memory)[self.begin : self.begin + self.size]


class Heap:
    """The blocks of one process.

    Args:
        folder: where files would be.
        ident: the process's identity within the run.
    """

    def __init__(self, folder: Folder, ident: str) -> None:
        self._folder = folder
        self._ident = ident
        self._lock = threading.Lock()
        self._arenas: dict[Arena, Ranges] = {}

    def take(self, size: int) -> Block:
        """A new block, all zeros.

        Raises:
            OSError: there is no room for it.
        """
        room = _rounded(size)
        if room > _LARGEST:
            arena = Arena(room, self._folder, self._ident)
            return Block(arena, HEAD, size)
        with self._lock:
            block = self._find(room, size)
        block.view[:] = bytes(size)
        return block

    def give(self, block: Block) -> None:
        """A block is used no more."""
        with self._lock:
            ranges = self._arenas.get(block.arena)
            if ranges is None:
                block.arena.close()
                return
            ranges.give(block.begin, _rounded(block.size))
            # one is kept for what comes next
            if ranges.is_whole and len(self._arenas) > 1:
                del self._arenas[block.arena]
                block.arena.close()

    def _find(self, room: int, size: int) -> Block:
        for arena, ranges in self._arenas.items():
            begin = ranges.take(room)
            if begin is not None:
                return Block(arena, begin, size)
        arena = Arena(_SHARED - HEAD, self._folder, self._ident)
        ranges = self._arenas[arena] = Ranges(arena.size, HEAD)
        found = ranges.take(room)
        assert found is not None
        return Block(arena, found, size)


_heaps: weakref.WeakKeyDictionary[Store, Heap] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def heap_of(store: Store) -> Heap:
    """The heap of a process, made on first use."""
    with _making:
        found = _heaps.get(store)
        if found is None:
            node = store.node
            found = _heaps[store] = Heap(lambda: node.directory, store.ident)
        return found


def _rounded(size: int) -> int:
    return max(1, -(-size // _LINE)) * _LINE
