"""A stretch of memory that other processes of this host can map and change.

It has its full size and all its pages from the beginning, so that a lack of room shows when it is
made. Random bytes in its head tell that it is the right one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import weakref

from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD, MARK, Folder, Place

__all__ = ["HEAD", "Arena", "Folder", "Place", "map_arena"]


class Arena:
    """The maker's side.

    Args:
        size: bytes that are of use, beside the head.
        folder: where a file would be.
        ident: the maker's identity within the run.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, size: int, folder: Folder, ident: str) -> None:
        pages = -(-(HEAD + size) // mmap.PAGESIZE)
        #: bytes in all
        self.size = pages * mmap.PAGESIZE
        mark = secrets.token_bytes(MARK)
        fd, path = backing.create(folder, ident)
        self._closing = weakref.finalize(self, backing.release, fd, path, os.getpid())
        self._closing.atexit = path is not None
        try:
            backing.reserve(fd, self.size, path)
            self.memory = mmap.mmap(fd, self.size)
        except BaseException:
            self._closing()
            raise
        self.memory[:MARK] = mark
        #: how others find it
        self.place = backing.place_of(fd, path, self.size, mark)
        with _mapping:
            _mapped[mark] = self.memory

    def close(self) -> None:
        """Let nobody else map it; who has does not notice. Idempotent."""
        self._closing()


# by mark: a process maps an arena once
_mapped: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()
_mapping = threading.Lock()


def map_arena(place: Place, folder: Folder) -> mmap.mmap | None:
    """The holders' side: an arena of another process; None where it is not to be had here."""
    with _mapping:
        found = _mapped.get(place.mark)
        if found is None:
            found = _map(place, folder)
            if found is not None:
                _mapped[place.mark] = found
        return found


def _map(place: Place, folder: Folder) -> mmap.mmap | None:
    fd = backing.find(place, folder, write=True)
    if fd is None:
        return None
    try:
        memory = mmap.mmap(fd, place.size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return memory if memory[:MARK] == place.mark else None
