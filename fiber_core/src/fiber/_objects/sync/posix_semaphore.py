"""POSIX semaphores in memory that processes share, used by the standard library's C code.

``multiprocessing`` has a class in C, ``SemLock``, that takes and raises a semaphore in a quarter of the time that a
function takes which is called through ctypes. Here the semaphores are in memory of ours and have no name.

What is relied on: that a semaphore's value is the lower half of its first 64 bits, and that the C library wakes
a thread that waits for that word (``futex(2)``) where the upper half is not 0. So it is in glibc from 2.21 on;
:func:`is_possible` tries it out. Apart from :mod:`~fiber._objects.sync.shared_lock`, which is about deaths.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

from fiber._objects.sync import monitor

#: bytes of a semaphore
SIZE = 32
#: a bit of the value that :meth:`Semaphore.freeze` sets
FROZEN = 1024

# kind of a SemLock that any thread may raise, and its largest value
_ANY_THREAD, _MAXIMUM = 1, 1
# futex(2): operation that changes a word atomically; what it does with FROZEN
_WAKE_OP = 5
_OR, _AND_NOT = 2 << 28 | FROZEN << 12, 3 << 28 | FROZEN << 12


class Semaphore:
    """A semaphore whose value is 0 or 1, unless it is frozen.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :data:`SIZE` bytes.
    """

    def __init__(self, memory: mmap.mmap, begin: int) -> None:
        # keeps it mapped
        self._memory = (ctypes.c_char * SIZE).from_buffer(memory, begin)
        self._reference = ctypes.byref(self._memory)
        self._address = ctypes.addressof(self._memory)
        self._functions = monitor.functions()
        self._post = self._functions.post

    def make(self, value: int) -> None:
        """Make it, with a value."""
        self._functions.init_semaphore(self._reference, 1, value)

    def opened(self) -> Any:
        """A new ``SemLock`` of it, whose methods count what this process does."""
        from _multiprocessing import SemLock  # type: ignore[import-not-found] # it has no stubs

        return SemLock._rebuild(self._address, _ANY_THREAD, _MAXIMUM, None)  # noqa: SLF001

    def post(self) -> None:
        """Raise the value, uncounted."""
        self._post(self._reference)

    def freeze(self) -> None:
        """Make ``SemLock.release`` fail, whatever the value, until :meth:`thaw`; ``acquire`` continues to work."""
        self._change(_OR)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        self._change(_AND_NOT)

    def _change(self, how: int) -> None:
        self._functions.wake(monitor.NUMBER, self._address, _WAKE_OP, 0, None, self._address, how)


@functools.cache
def is_possible() -> bool:
    """True where this system has such semaphores; False where it is not known to be so."""
    if not monitor.is_possible() or not hasattr(ctypes.PyDLL(None), "gnu_get_libc_version"):
        # another C library may not close one that has no name
        return False
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    halves = memoryview(memory).cast("i")
    semaphore = Semaphore(memory, 0)
    try:
        semaphore.make(0)
        user = semaphore.opened()
    except (ImportError, AttributeError, TypeError):
        return False
    seen = []
    halves[1] = 1
    for step in (semaphore.post, semaphore.freeze, user.acquire, user.release, semaphore.thaw):
        try:
            step()
        except ValueError:
            seen.append(-1)
        seen.append(halves[0])
    return [*seen, halves[1]] == [1, FROZEN + 1, FROZEN, -1, FROZEN, 0, 1]
