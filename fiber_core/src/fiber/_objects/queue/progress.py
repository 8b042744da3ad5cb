"""Progress pages: shared memory in which readers note the items that they have handed out.

A reader on its owner's host writes there, at the price of a store, the number of the last item that
its user got. When it dies suddenly the owner knows exactly which of the items delivered to it were
handed out. On other hosts the owner knows only what the reader has reported by messages.

A page has :data:`SLOTS` slots of four 64-bit words; the first slot is the head, which begins with a
random tag that identifies the page. It is a memfd where the system has that, which the owner opens
by the reader's descriptor (``/proc/PID/fd/N``); otherwise it is a file in the run's folder, which
the owner unlinks.
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

#: bytes of the tag that identifies a page
TAG_SIZE = 16
#: words of a slot: handed out; given back after and up to; tasks done
_WORDS = 4
_SLOT = 8 * _WORDS
#: slots of a page, the first of which is its head
SLOTS = 1024

# prefix of the name of a page that is opened by the reader's descriptor
_DESCRIPTOR = "fd:"
# name of a page in the run's folder
_NAME = re.compile(r"p[\w.]+-\d+", re.ASCII)
_numbers = itertools.count(1)


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
        self._path: Path | None = None
        if sys.platform == "linux":
            self._fd = os.memfd_create("fiber-progress", os.MFD_CLOEXEC)
            #: name by which the owner opens it
            self.name = f"{_DESCRIPTOR}{self._fd}"
        else:
            self.name = f"p{ident}-{next(_numbers)}"
            self._path = folder / self.name
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        os.ftruncate(self._fd, SLOTS * _SLOT)
        memory = mmap.mmap(self._fd, SLOTS * _SLOT)
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def page_path(name: str, pid: int, folder: Path) -> Path | None:
    """Path of the page ``name`` of process ``pid``; None for a malformed name."""
    if name.startswith(_DESCRIPTOR):
        number = name.removeprefix(_DESCRIPTOR)
        return Path(f"/proc/{pid}/fd/{number}") if number.isdecimal() else None
    return folder / name if _NAME.fullmatch(name) else None


def open_page(path: Path, tag: bytes) -> memoryview | None:
    """Map a reader's page in the owner: its words; None if it is not on this host."""
    try:
        # a peer named it: opening a FIFO must not block
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
    if memory[:TAG_SIZE] != tag:
        return None
    if not path.is_symlink():
        path.unlink(missing_ok=True)
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
