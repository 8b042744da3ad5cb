"""What shared memory is made of: memory without a name where the system has that, else a file.

Memory without a name is reached by the descriptor of a process that has it, so nothing is left of
it when the last process that maps it is gone, however that came. A file is in the run's folder.

A stretch of memory that other processes of this host can map and change.

It has its full size and all its pages from the beginning, so that a lack of room shows when it is
made. Random bytes in its head tell that it is the right one.
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
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from fiber._base import values
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError

__all__ = ["HEAD", "Arena", "Folder", "Place", "map_arena"]

#: bytes that tell that memory is the right one
MARK = 16
#: bytes of its head, which begins with them
HEAD = 64

#: begins the name of what is reached by a descriptor
DESCRIPTOR = "fd:"
# a file in the run's folder
_NAME = re.compile(r"m[\w.]+-\d+", re.ASCII)
#: from here on the machine is asked whether it has that much
_MUCH = 16 * 2**20
# what a file is filled with where pages cannot be asked for
_ZEROS = bytes(2**20)

# process, bytes, mark; the name follows
_PLACE = struct.Struct(f"<QQ{MARK}s")

_numbers = itertools.count(1)
#: the folder of the run on this host; asked for where it is needed only
Folder: TypeAlias = Callable[[], Path]


@values.frozen
class Place:
    """How a process on the same host finds memory."""

    #: its name, and the process that has it
    name: str
    pid: int
    #: its bytes
    size: int
    mark: bytes

    def packed(self) -> bytes:
        """As bytes."""
        return _PLACE.pack(self.pid, self.size, self.mark) + self.name.encode()

    @classmethod
    def unpack(cls, body: Buffer) -> Place:
        """The place of :meth:`packed`.

        Raises:
            WireError: it makes no sense.
        """
        try:
            pid, size, mark = _PLACE.unpack_from(body)
            name = bytes(body[_PLACE.size :]).decode()
        except (struct.error, UnicodeDecodeError) as error:
            msg = "the place of shared memory makes no sense"
            raise WireError(msg) from error
        return cls(name, pid, size, mark)


def create(folder: Folder, ident: str) -> tuple[int, Path | None]:
    """New memory without any bytes yet: its descriptor, and its file if it is one."""
    fd = _without_name()
    if fd is not None:
        return fd, None
    path = folder() / f"m{ident}-{next(_numbers)}"
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600), path


def place_of(fd: int, path: Path | None, size: int, mark: bytes) -> Place:
    """Where others find what this process has open."""
    name = f"{DESCRIPTOR}{fd}" if path is None else path.name
    return Place(name, os.getpid(), size, mark)


def find(place: Place, folder: Folder, *, write: bool) -> int | None:
    """A descriptor for what is at a place; None where it is not to be had here."""
    path = _path(place, folder)
    if path is None:
        return None
    # whatever it is, looking at it must not wait
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size == place.size:
        return fd
    os.close(fd)
    return None


def reserve(fd: int, size: int, path: Path | None) -> None:
    """Give memory its size and all its pages, for good.

    Raises:
        OSError: there is no room for it.
    """
    check_room(size, path)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            for begin in range(0, size, len(_ZEROS)):
                os.pwrite(fd, _ZEROS[: size - begin], begin)
    except OSError as error:
        raise no_room(size, path, error) from error
    if sys.platform == "linux" and path is None:
        # nobody can take a page away under those who map it
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def check_room(size: int, path: Path | None) -> None:
    """Refuse more than the machine has: the kernel would end some process rather than say no.

    Raises:
        OSError: it is too much.
    """
    if path is None and size >= _MUCH and size > available():
        raise no_room(size, path, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))


def no_room(size: int, path: Path | None, cause: OSError) -> OSError:
    """What a lack of room means for users."""
    where = "in memory" if path is None else f"in {path.parent}"
    text = f"no room for {size} bytes of shared memory {where}: {cause.strerror}; make it smaller"
    if path is not None:
        text += ", or set XDG_RUNTIME_DIR to a folder with more room"
    error = OSError(cause.errno, text)
    error.__cause__ = cause
    return error


def release(fd: int, path: Path | None, maker: int) -> None:
    """Close it, so that nobody else finds it; who maps it does not notice."""
    os.close(fd)
    # not in a process that the user forked, whose copy of this ends as well
    if path is not None and os.getpid() == maker:
        path.unlink(missing_ok=True)


def _path(place: Place, folder: Folder) -> Path | None:
    if place.name.startswith(DESCRIPTOR):
        number = place.name.removeprefix(DESCRIPTOR)
        return Path(f"/proc/{place.pid}/fd/{number}") if number.isdecimal() else None
    return folder() / place.name if _NAME.fullmatch(place.name) else None


def _without_name() -> int | None:
    if sys.platform == "linux":
        # not every build of Python has it, nor every sandbox
        with contextlib.suppress(AttributeError, OSError):
            return os.memfd_create("fiber-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    return None


def available() -> int:
    """Bytes that new memory may have: what is free, within what this process may have at all."""
    import psutil

    from fiber._agent.cgroups import memory_total

    free = psutil.virtual_memory().available + psutil.swap_memory().free
    return min(int(free), memory_total() * 2**20)


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
        fd, path = create(folder, ident)
        self._closing = weakref.finalize(self, release, fd, path, os.getpid())
        self._closing.atexit = path is not None
        try:
            reserve(fd, self.size, path)
            self.memory = mmap.mmap(fd, self.size)
        except BaseException:
            self._closing()
            raise
        self.memory[:MARK] = mark
        #: how others find it
        self.place = place_of(fd, path, self.size, mark)
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
    fd = find(place, folder, write=True)
    if fd is None:
        return None
    try:
        memory = mmap.mmap(fd, place.size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return memory if memory[:MARK] == place.mark else None
