"""A stretch of memory that other processes of this host can map.

It is memory without a name where the system has that, reached by the maker's descriptor: nothing
is left of it when the last process that maps it is gone, however that came. Elsewhere it is a file
in the run's folder. It has its full size and all its pages from the beginning, so that a lack of
room shows when it is made. Random bytes in its head tell that it is the right one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import re
import secrets
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import attrs

#: bytes that identify an arena
MARK = 16
#: bytes of its head
HEAD = 64

# begins the name of an arena that is reached by its maker's descriptor
_DESCRIPTOR = "fd:"
# one in the run's folder
_NAME = re.compile(r"m[\w.]+-\d+", re.ASCII)
#: from here on the machine is asked whether it has that much
_MUCH = 16 * 2**20
# what a file is filled with where pages cannot be asked for
_ZEROS = bytes(2**20)

_numbers = itertools.count(1)
#: the folder of the run on this host; asked for where it is needed only
Folder: TypeAlias = Callable[[], Path]


@attrs.frozen
class Place:
    """How a process on the maker's host finds an arena."""

    #: its name, and the process that has it
    name: str
    pid: int
    #: its bytes
    size: int
    mark: bytes


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
        path: Path | None = None
        fd = _without_name()
        if fd is None:
            path = folder() / f"m{ident}-{next(_numbers)}"
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._closing = weakref.finalize(self, _close, fd, path, os.getpid())
        self._closing.atexit = path is not None
        try:
            _fill(fd, self.size, path)
            self.memory = mmap.mmap(fd, self.size)
        except BaseException:
            self._closing()
            raise
        self.memory[:MARK] = mark
        name = f"{_DESCRIPTOR}{fd}" if path is None else path.name
        #: how others find it
        self.place = Place(name, os.getpid(), self.size, mark)
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
    path = _path(place, folder)
    try:
        # whatever it is, looking at it must not wait
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        fd = None if path is None else os.open(path, flags)
    except OSError:
        return None
    if fd is None:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != place.size:
            return None
        memory = mmap.mmap(fd, place.size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return memory if memory[:MARK] == place.mark else None


def _path(place: Place, folder: Folder) -> Path | None:
    if place.name.startswith(_DESCRIPTOR):
        number = place.name.removeprefix(_DESCRIPTOR)
        return Path(f"/proc/{place.pid}/fd/{number}") if number.isdecimal() else None
    return folder() / place.name if _NAME.fullmatch(place.name) else None


def _without_name() -> int | None:
    if sys.platform == "linux":
        # not every build of Python has it, nor every sandbox
        with contextlib.suppress(AttributeError, OSError):
            return os.memfd_create("fiber-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    return None


def _fill(fd: int, size: int, path: Path | None) -> None:
    """Give it its size and all its pages."""
    if path is None and size >= _MUCH and size > _available():
        # the kernel would end some process rather than say no
        raise _no_room(size, "in memory", OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            for begin in range(0, size, len(_ZEROS)):
                os.pwrite(fd, _ZEROS[: size - begin], begin)
    except OSError as error:
        raise _no_room(size, "in memory" if path is None else f"in {path.parent}", error) from error
    if sys.platform == "linux" and path is None:
        # nobody can take a page away under those who map it
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def _no_room(size: int, where: str, cause: OSError) -> OSError:
    text = f"no room for {size} bytes of shared memory {where}: {cause.strerror}; make it smaller"
    if where != "in memory":
        text += ", or set XDG_RUNTIME_DIR to a folder with more room"
    error = OSError(cause.errno, text)
    error.__cause__ = cause
    return error


def _available() -> int:
    import psutil

    from fiber.launch.cpus import memory_total

    free = psutil.virtual_memory().available + psutil.swap_memory().free
    return min(int(free), memory_total() * 2**20)


def _close(fd: int, path: Path | None, maker: int) -> None:
    os.close(fd)
    # not in a process that the user forked, whose copy of this ends as well
    if path is not None and os.getpid() == maker:
        path.unlink(missing_ok=True)
