"""Notes of a process that outlive it: bytes in shared memory, which its supervisor reads at its end.

A process that is killed says no more what it was at. What it notes in its page costs it a store, and is
there after its end: the page is a file in the folder that process and supervisor have in common. The report
of the end carries it to the parent.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from pathlib import Path

#: bytes of a page, each of them a slot
SLOTS = 4096


def _path(folder: str, pid: int) -> str:
    return f"{folder}/{pid}.notes"


class Notes:
    """Page of this process.

    Args:
        folder: folder of the run, or of the job, on this host; None where nobody will read them.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, folder: Path | None) -> None:
        #: the slots, 0 each to begin with
        self.page = memoryview(bytearray(SLOTS) if folder is None else _shared(folder))
        # in turn, so that one is not used again soon
        self._free = deque(range(SLOTS))

    def take(self) -> int:
        """Take a free slot; -1 if there is none."""
        return self._free.popleft() if self._free else -1

    def free(self, slot: int) -> None:
        """Free a slot, and set it to 0."""
        self.page[slot] = 0
        self._free.append(slot)


def _shared(folder: Path) -> mmap.mmap:
    flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(_path(str(folder), os.getpid()), flags, 0o600)
    try:
        # written, since a hole on a full disk would be a signal later
        os.write(descriptor, bytes(SLOTS))
        return mmap.mmap(descriptor, SLOTS)
    finally:
        os.close(descriptor)


def collect(folder: str, pid: int) -> bytes | None:
    """Notes of a process that has ended, without zeros at the end; None where it has made none. Removes them."""
    path = _path(folder, pid)
    try:
        # not to block, whatever the process has put there
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.read(descriptor, SLOTS)
        os.unlink(path)  # noqa: PTH108 - a word, and no object
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found.rstrip(b"\0")
