"""A page of memory in which a reader notes what it has handed out, for the owner to see.

A reader on the owner's own host writes there, at the price of a store, the number of the last item
that its user got. When it dies without a word the owner knows exactly which of the items delivered
to it were handed out. Elsewhere the owner knows what the reader has told it.

The page is memory without a name where the system has that, which the owner reaches by the
reader's descriptor; elsewhere it is a file in the run's folder, whose name the owner removes. Random
bytes in its head tell that it is the right one.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import secrets
import stat
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from fiber._objects.queue.in_flight import Progress

#: bytes that identify a page
MARK = 16
#: numbers of a slot: handed out; given back after and up to; tasks done
_WORDS = 4
_SLOT = 8 * _WORDS
#: slots of a page, the first of which is its head
SLOTS = 1024

# begins the name of a page that is reached by the reader's descriptor
_DESCRIPTOR = "fd:"
# one in the run's folder
_NAME = re.compile(r"p[\w.]+-\d+", re.ASCII)
_numbers = itertools.count(1)


class Slot:
    """Where one reader of one lane notes what it does."""

    __slots__ = ("at", "index", "words")

    def __init__(self, words: memoryview, index: int) -> None:
        self.words = words
        #: number of the slot in its page, -1 where nobody else sees it
        self.index = index
        #: position of the number of items handed out
        self.at = max(index, 0) * _WORDS

    @classmethod
    def private(cls) -> Slot:
        """One that nobody else sees."""
        return cls(memoryview(bytearray(_SLOT)).cast("Q"), -1)

    def gave(self, after: int, upto: int) -> None:
        """Note what goes back; before the numbers that come after it are handed out."""
        self.words[self.at + 1] = after
        self.words[self.at + 2] = upto
        self.words[self.at] = upto

    def did(self, tasks: int) -> None:
        """Note how many tasks are done."""
        self.words[self.at + 3] = tasks


class Page:
    """The reader's side: slots for its lanes of one owner."""

    def __init__(self, folder: Path, ident: str) -> None:
        self.mark = secrets.token_bytes(MARK)
        self._path: Path | None = None
        if sys.platform == "linux":
            self._fd = os.memfd_create("fiber-progress", os.MFD_CLOEXEC)
            #: how the owner finds it
            self.name = f"{_DESCRIPTOR}{self._fd}"
        else:
            self.name = f"p{ident}-{next(_numbers)}"
            self._path = folder / self.name
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        os.ftruncate(self._fd, SLOTS * _SLOT)
        memory = mmap.mmap(self._fd, SLOTS * _SLOT)
        memory[:MARK] = self.mark
        self._words = memoryview(memory).cast("Q")
        # in turn, so that the owner has long heard of the end of a slot's last reader
        self._free = deque(range(1, SLOTS))

    def slot(self) -> Slot:
        """A slot of its own for a lane; a private one where none is left."""
        if not self._free:
            return Slot.private()
        slot = Slot(self._words, self._free.popleft())
        slot.gave(0, 0)
        slot.did(0)
        return slot

    def release(self, slot: Slot) -> None:
        """A lane needs its slot no more."""
        if slot.index >= 0:
            self._free.append(slot.index)

    def close(self) -> None:
        """Let go of it; slots in use stay good. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def place(name: str, pid: int, folder: Path) -> Path | None:
    """Where the page of a reader is, by its name and its process; None for a name that is none."""
    if name.startswith(_DESCRIPTOR):
        number = name.removeprefix(_DESCRIPTOR)
        return Path(f"/proc/{pid}/fd/{number}") if number.isdecimal() else None
    return folder / name if _NAME.fullmatch(name) else None


def open_page(path: Path, mark: bytes) -> memoryview | None:
    """The owner's side: the words of a reader's page; None where it is not to be had here."""
    try:
        # whatever it is, looking at it must not wait
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != SLOTS * _SLOT:
            return None
        memory = mmap.mmap(fd, SLOTS * _SLOT, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    if memory[:MARK] != mark:
        return None
    if not path.is_symlink():
        path.unlink(missing_ok=True)
    return memoryview(memory).cast("Q")


def reader_of(words: memoryview, index: int) -> Callable[[], Progress]:
    """What reads one slot of a page."""
    at = index * _WORDS

    def read() -> Progress:
        return words[at], words[at + 1], words[at + 2]

    return read


def tasks_of(words: memoryview, index: int) -> Callable[[], int]:
    """What reads how many tasks the reader of a slot has done."""
    at = index * _WORDS + 3

    def read() -> int:
        return words[at]

    return read
