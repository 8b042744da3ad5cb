"""Sealed memory: written once, then mapped by processes of its host, and never changed.

It is mapped privately. A process that only reads shares its pages with all others; one that asks
for writable memory gets a copy of each page that it writes, and changes nothing for the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD, TAG_SIZE, Folder, Location
from fiber._wire.frames import Buffer


class Draft:
    """Memory while it is written.

    Args:
        size: usable bytes, without the head.
        folder: returns the folder for a file.
        ident: the maker's identity within the run.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, size: int, folder: Folder, ident: str) -> None:
        self._size = HEAD + size
        self._fd, self._path = backing.create(folder, ident)
        self._closing = weakref.finalize(self, backing.release, self._fd, self._path, os.getpid())
        try:
            backing.check_room(self._size, self._path)
            self._tag = secrets.token_bytes(TAG_SIZE)
            self._write(0, self._tag)
            os.ftruncate(self._fd, self._size)
        except BaseException:
            self.discard()
            raise

    def write(self, begin: int, data: Buffer) -> None:
        """Write bytes.

        Raises:
            OSError: there is no room for them.
        """
        self._write(HEAD + begin, data)

    def seal(self) -> Sealed:
        """Seal it; it cannot be written to any more."""
        if sys.platform == "linux" and self._path is None:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
        self._closing.detach()
        location = backing.location_of(self._fd, self._path, self._size, self._tag)
        return Sealed(self._fd, location, self._path)

    def discard(self) -> None:
        """Discard it; idempotent."""
        self._closing()

    def _write(self, begin: int, data: Buffer) -> None:
        try:
            backing.write(self._fd, data, begin)
        except OSError as error:
            raise backing.no_room_error(self._size, self._path, error) from error


class Sealed:
    """Sealed memory, in its maker's process or another. Made by :func:`seal` and :func:`find`."""

    def __init__(self, fd: int, location: Location, path: Path | None = None) -> None:
        self._fd = fd
        #: location for processes of this host, by this process
        self.location = location
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._closing = weakref.finalize(self, backing.release, fd, path, os.getpid())
        self._closing.atexit = path is not None

    @property
    def size(self) -> int:
        """Usable bytes, without the head."""
        return self.location.size - HEAD

    def view(self) -> memoryview:
        """Its bytes, read-only.

        Raises:
            OSError: the system cannot map it.
        """
        with self._lock:
            if self._memory is None:
                self._memory = self._map(mmap.PROT_READ)
            return memoryview(self._memory)[HEAD:]

    def private(self) -> memoryview:
        """Its bytes, readable and writable; writes are seen in this view only.

        Raises:
            OSError: the system cannot map it.
        """
        return memoryview(self._map(mmap.PROT_READ | mmap.PROT_WRITE))[HEAD:]

    def close(self) -> None:
        """Close it: it cannot be found by this process any more; views stay valid. Idempotent."""
        self._closing()

    def _map(self, protection: int) -> mmap.mmap:
        size = self.location.size
        return mmap.mmap(self._fd, size, mmap.MAP_PRIVATE, protection, **backing.UNTRACKED)


def seal(segments: Iterable[Buffer], folder: Folder, ident: str) -> Sealed:
    """Make sealed memory of segments.

    Args:
        segments: its bytes, one after another.
        folder: returns the folder for a file.
        ident: the maker's identity within the run.

    Raises:
        OSError: there is no room for them.
    """
    segments = list(segments)
    draft = Draft(sum(len(segment) for segment in segments), folder, ident)
    try:
        begin = 0
        for segment in segments:
            draft.write(begin, segment)
            begin += len(segment)
        return draft.seal()
    except BaseException:
        draft.discard()
        raise


def find(location: Location, folder: Folder) -> Sealed | None:
    """Open sealed memory of another process; None where it is not on this host."""
    fd = backing.find(location, folder, write=False)
    if fd is None:
        return None
    by_descriptor = location.name.startswith(backing.DESCRIPTOR)
    if not _is_it(fd, location) or (by_descriptor and not _is_sealed(fd)):
        os.close(fd)
        return None
    return Sealed(
        fd,
        backing.location_of(fd, None, location.size, location.tag) if by_descriptor else location,
    )


def _is_it(fd: int, location: Location) -> bool:
    return location.size >= HEAD and os.pread(fd, TAG_SIZE, 0) == location.tag


def _is_sealed(fd: int) -> bool:
    if sys.platform == "linux":
        # fails for files without seals
        with contextlib.suppress(OSError):
            return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    return False
