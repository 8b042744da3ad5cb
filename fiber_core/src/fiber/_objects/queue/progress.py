"""Progress pages: shared memory in which readers note the items that they have handed out.

A reader on its owner's host writes there, at the price of a store, the number of the last item that
its user got. When it dies suddenly the owner knows exactly which of the items delivered to it were
handed out. On other hosts the owner knows only what the reader has reported by messages.

A page has :data:`SLOTS` slots of four 64-bit words; the first slot is the head, which begins with a
random tag that identifies the page. It is memory as all that processes of a host share
(:mod:`fiber._objects.memory.backing`); where that is a file in the run's folder, the owner unlinks it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from fiber._objects.memory import backing
from fiber._objects.memory.backing import TAG_SIZE, Location
from fiber._objects.queue.bypass import Progress

#: words of a slot: handed out; given back after and up to; tasks done
_WORDS = 4
_SLOT = 8 * _WORDS
#: slots of a page, the first of which is its head
SLOTS = 1024
PAGE_SIZE = SLOTS * _SLOT


class ProgressSlot:
    """The words of one reader of one queue."""

    __slots__ = ("index", "offset", "words")

    def __init__(self, words: memoryview, index: int) -> None:
        self.words = words
        #: number of the slot in its page; -1 where it is in no page
        self.index = index
        #: index of its first word in the page
        self.offset = max(index, 0) * _WORDS

    @classmethod
    def private(cls) -> ProgressSlot:
        """Make one in memory that is not shared."""
        return cls(memoryview(bytearray(_SLOT)).cast("Q"), -1)

    def note_given_back(self, after: int, upto: int) -> None:
        """Note the items given back; before any item behind them is handed out."""
        self.words[self.offset + 1] = after
        self.words[self.offset + 2] = upto
        self.words[self.offset] = upto

    def note_done(self, tasks: int) -> None:
        """Note the number of tasks done."""
        self.words[self.offset + 3] = tasks


class ProgressPage:
    """A page as its reader sees it: a slot for each queue of one owner."""

    def __init__(self, folder: Path, ident: str) -> None:
        self.tag = secrets.token_bytes(TAG_SIZE)
        self._lock = threading.Lock()
        self._fd, self._path = backing.create(lambda: folder, ident, "fiber-progress")
        #: name by which the owner opens it
        self.name = backing.location_of(self._fd, self._path, PAGE_SIZE, self.tag).name
        os.ftruncate(self._fd, PAGE_SIZE)
        memory = mmap.mmap(self._fd, PAGE_SIZE)
        memory[:TAG_SIZE] = self.tag
        self._words = memoryview(memory).cast("Q")
        # in turn, so that the owner knows the end of a slot's last reader when it is used again
        self._free = deque(range(1, SLOTS))

    def slot(self) -> ProgressSlot:
        """Take a free slot; a private one if there is none."""
        if not self._free:
            return ProgressSlot.private()
        slot = ProgressSlot(self._words, self._free.popleft())
        slot.note_given_back(0, 0)
        slot.note_done(0)
        return slot

    def release(self, slot: ProgressSlot) -> None:
        """Free a slot."""
        if slot.index >= 0:
            self._free.append(slot.index)

    def close(self) -> None:
        """Close it; slots in use stay valid. Idempotent."""
        # a thread that lost the owner and one that ends the program may both be here
        with self._lock:
            descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def open_page(location: Location, folder: Path) -> memoryview | None:
    """Map a reader's page in the owner: its words; None if it is not on this host."""
    fd = backing.find(location, lambda: folder, write=False)
    if fd is None:
        return None
    try:
        memory = mmap.mmap(fd, PAGE_SIZE, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    if memory[:TAG_SIZE] != location.tag:
        return None
    if not location.name.startswith(backing.DESCRIPTOR):
        (folder / location.name).unlink(missing_ok=True)
    return memoryview(memory).cast("Q")


def progress_of(words: memoryview, index: int) -> Callable[[], Progress]:
    """A function that reads a reader's progress from its slot."""
    at = index * _WORDS

    def read() -> Progress:
        return words[at], words[at + 1], words[at + 2]

    return read


def tasks_done_of(words: memoryview, index: int) -> Callable[[], int]:
    """A function that reads the number of tasks done from a reader's slot."""
    at = index * _WORDS + 3

    def read() -> int:
        return words[at]

    return read
