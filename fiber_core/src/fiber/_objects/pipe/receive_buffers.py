"""Memory for large arrays that arrive: pages that were used before, where they are free again.

A new page costs more than it takes to copy what goes into it, five to twenty times as much. The C library
gives large memory back to the kernel when it is free, so that a program which receives arrays gets new pages
for each. Here some of what is free is kept for the next; new memory gets all its pages by one call, which saves
a third.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import weakref
from typing import Any

#: bytes from which on memory is kept, and up to which: numpy gets memory for larger arrays in huge pages, which
#: the C library gives out again better than memory that is kept apart from it
LEAST, MOST = 256 * 2**10, 4 * 2**20 - 1
#: bytes of free memory that a process may keep, on a host with much memory, and most pieces
_KEPT_SIZE, _MOST_KEPT_SIZE, _MOST_KEPT = 64 * 2**20, 256 * 2**20, 256
#: sizes are multiples of it, so that arrays of nearly one size have the same memory
_GRANULE = 64 * 2**10


class _Loan(weakref.ref[Any]):
    """Memory in use, until what all views of it refer to is gone."""

    __slots__ = ("memory",)

    memory: mmap.mmap

    def __new__(cls, lender: Any, memory: mmap.mmap) -> _Loan:
        self = super().__new__(cls, lender, _end)
        self.memory = memory
        return self

    # of the reference, since what it refers to has none
    __hash__ = object.__hash__


# free, least recently used first; without a lock, which a thread may hold as the last reference to other memory goes
_kept: list[mmap.mmap] = []
_lent: set[_Loan] = set()


def allocate(size: int) -> memoryview:
    """Writable memory of so many bytes, with anything in it; kept for others once no view of it is left."""
    if not LEAST <= size <= MOST:
        return memoryview(bytearray(size))
    try:
        memory = _again(size) or _new(size)
    except OSError:
        # the system maps no more
        return memoryview(bytearray(size))
    # all views refer to this one, so its end is that of the last view
    lender = _lender(len(memory)).from_buffer(memory)
    _lent.add(_Loan(lender, memory))
    return memoryview(lender).cast("B")[:size]


def is_too_much(size: int) -> bool:
    """True for more bytes of free memory than a process keeps, here or for items that it sends."""
    return size > _KEPT_SIZE and size > _most_kept_size()


@functools.cache
def _most_kept_size() -> int:
    """A 64th of the memory of the machine, or of its control groups."""
    from fiber._agent.cgroups import memory_total

    return min(memory_total() * 2**20 // 64, _MOST_KEPT_SIZE)


def _again(size: int) -> mmap.mmap | None:
    """Free memory that is not much larger."""
    for one in reversed(list(_kept)):
        if size <= len(one) <= size + size // 4:
            # else another thread has it
            with contextlib.suppress(ValueError):
                _kept.remove(one)
                return one
    return None


def _new(size: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(-1, size + -size % _GRANULE, flags=flags)


def _end(loan: Any) -> None:
    _lent.discard(loan)
    _kept.append(loan.memory)
    while len(kept := list(_kept)) > _MOST_KEPT or is_too_much(sum(map(len, kept))):
        # another thread may do the same
        with contextlib.suppress(ValueError):
            _kept.remove(kept[0])


@functools.lru_cache(_MOST_KEPT)
def _lender(size: int) -> Any:
    import ctypes

    return ctypes.c_char * size
