"""Memory of large items in pipes: memfds, which are used again, since getting pages costs more than writing.

Layout: a byte that is 1 while an item is in it which its receiver uses, or may; at byte 64 the item.
The receiver has no other way to tell, and needs none where it dies: then the memory is not used again.

Apart from :mod:`~fiber._objects.pipe.packets`, which is about messages.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading

from fiber._objects.memory import backing
from fiber._wire.frames import Buffer

_HEAD = 64
#: memfds that a process keeps for its next items, and the size up to which it keeps one, in bytes
_KEPT = 2
_KEPT_SIZE = 64 * 2**20


class Memory:
    """A memfd for one item at a time."""

    def __init__(self) -> None:
        #: its descriptor
        self.fd = _memfd()
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._state = mmap.mmap(self.fd, mmap.PAGESIZE, **backing.UNTRACKED)
        #: bytes of the largest item so far
        self.size = 0

    @property
    def is_used(self) -> bool:
        """True while a receiver uses its item, or may."""
        return bool(self._state[0])

    @is_used.setter
    def is_used(self, is_used: bool) -> None:
        self._state[0] = is_used

    def write(self, data: Buffer, begin: int) -> None:
        """Write bytes of the item.

        Raises:
            OSError: there is no memory for them.
        """
        backing.write(self.fd, data, begin + _HEAD)
        self.size = max(self.size, begin + memoryview(data).nbytes)

    def read(self, size: int) -> bytes:
        """The item, of so many bytes."""
        return os.pread(self.fd, size, _HEAD)

    def close(self) -> None:
        """Close it; its receiver goes on."""
        self._state.close()
        os.close(self.fd)


# least recently used first
_kept: list[Memory] = []
_lock = threading.Lock()


def take() -> Memory:
    """Memory for an item: the largest that is kept and that nobody uses, or new."""
    with _lock:
        free = [one for one in _kept if not one.is_used]
        if not free:
            return Memory()
        found = max(free, key=lambda one: one.size)
        _kept.remove(found)
        return found


def give_back(memory: Memory, *, is_used: bool) -> None:
    """Keep memory for other items, once the receiver of its item, if any, is done with it."""
    memory.is_used = is_used
    with _lock:
        if memory.size <= _KEPT_SIZE:
            _kept.append(memory)
            if len(_kept) <= _KEPT:
                return
            memory = _kept.pop(0)
    memory.close()


class _Received(mmap.mmap):
    """Memory of an item that was received; its sender may use it again when the last view is gone."""

    def __del__(self) -> None:
        self[0] = 0


def received(descriptor: int, size: int) -> memoryview:
    """The item of so many bytes in memory of another process, read-only."""
    memory = _Received(descriptor, _HEAD + size, **backing.UNTRACKED)
    return memoryview(memory)[_HEAD:].toreadonly()


def _memfd() -> int:
    if sys.platform == "linux":
        return os.memfd_create("fiber-pipe", os.MFD_CLOEXEC)
    raise NotImplementedError
