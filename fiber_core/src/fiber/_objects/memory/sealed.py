"""Memory that nobody changes any more: written once, mapped by processes of its host.

It is mapped privately. Who only reads shares its pages with all others; who asks for memory to
write to gets a copy of each page that it writes, and changes nothing for anybody else.
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
from typing import Any

from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD, MARK, Folder, Place
from fiber._wire.frames import Buffer

#: bytes that one system call writes at most
_AT_ONCE = 2**30


class Draft:
    """Memory while it is written.

    Args:
        size: bytes that are of use.
        folder: where a file would be.
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
            self._mark = secrets.token_bytes(MARK)
            self._write(0, self._mark)
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
        """End the writing."""
        if sys.platform == "linux" and self._path is None:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
        self._closing.detach()
        place = backing.place_of(self._fd, self._path, self._size, self._mark)
        return Sealed(self._fd, place, self._path)

    def discard(self) -> None:
        """Give it up; idempotent."""
        self._closing()

    def _write(self, begin: int, data: Buffer) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fd, view[:_AT_ONCE], begin)
                view, begin = view[written:], begin + written
        except OSError as error:
            raise backing.no_room(self._size, self._path, error) from error


class Sealed:
    """Memory that is written, as its maker or another process has it. See :func:`seal`."""

    def __init__(self, fd: int, place: Place, path: Path | None = None) -> None:
        self._fd = fd
        #: how processes on this host find it by this one
        self.place = place
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._closing = weakref.finalize(self, backing.release, fd, path, os.getpid())
        self._closing.atexit = path is not None

    @property
    def size(self) -> int:
        """Bytes that are of use."""
        return self.place.size - HEAD

    def view(self) -> memoryview:
        """Its bytes, to read.

        Raises:
            OSError: the system cannot map it.
        """
        with self._lock:
            if self._memory is None:
                self._memory = self._map(mmap.PROT_READ)
            return memoryview(self._memory)[HEAD:]

    def private(self) -> memoryview:
        """Its bytes, to read and to write; what is written is seen nowhere else.

        Raises:
            OSError: the system cannot map it.
        """
        return memoryview(self._map(mmap.PROT_READ | mmap.PROT_WRITE))[HEAD:]

    def close(self) -> None:
        """Let nobody else find it by this process; views stay valid. Idempotent."""
        self._closing()

    def _map(self, protection: int) -> mmap.mmap:
        # one descriptor is enough, where Python can be told so
        more: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        return mmap.mmap(self._fd, self.place.size, mmap.MAP_PRIVATE, protection, **more)


def seal(segments: Iterable[Buffer], folder: Folder, ident: str) -> Sealed:
    """Sealed memory with these bytes, one after another.

    Args:
        segments: the bytes.
        folder: where a file would be.
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


def find(place: Place, folder: Folder) -> Sealed | None:
    """Sealed memory of another process of this host; None where it is not to be had here."""
    fd = backing.find(place, folder, write=False)
    if fd is None:
        return None
    by_descriptor = place.name.startswith(backing.DESCRIPTOR)
    if not _is_it(fd, place) or (by_descriptor and not _is_sealed(fd)):
        os.close(fd)
        return None
    return Sealed(
        fd, backing.place_of(fd, None, place.size, place.mark) if by_descriptor else place
    )


def _is_it(fd: int, place: Place) -> bool:
    return place.size >= HEAD and os.pread(fd, MARK, 0) == place.mark


def _is_sealed(fd: int) -> bool:
    if sys.platform == "linux":
        # another kind of file has no seals, and says so by an error
        with contextlib.suppress(OSError):
            return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    return False
