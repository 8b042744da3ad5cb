"""Backing of shared memory: a memfd where the system has that, else a file; arenas and sealed memory in it.

A memfd has no name: processes of the host open it by the descriptor of a process that has it
(``/proc/PID/fd/N``), so nothing is left of it when the last process that maps it is gone, however
that came. A file is in the run's folder.

An arena is memory that processes of its host map and change. It has its full size and all its pages
from the beginning, so that a lack of room shows when it is made. Random bytes at its head, the tag,
identify it.

Sealed memory is written once, then mapped by processes of its host, and never changed. It is mapped privately: a process
that only reads shares its pages with all others; one that asks for writable memory gets a copy of each page that
it writes, and changes nothing for the others.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from fiber._base import values
from fiber._base.limits import explained
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError

#: bytes of the tag that identifies memory
TAG_SIZE = 16
#: bytes of the head, which begins with the tag
HEAD = 64

#: prefix of the name of memory that is opened by a descriptor
DESCRIPTOR = "fd:"
# name of a file in the run's folder
_NAME = re.compile(r"m[\w.]+-\d+", re.ASCII)
#: bytes from which on free memory is checked first
_CHECK_FROM = 16 * 2**20
#: arguments of ``mmap``: without a second descriptor, where Python has the option
UNTRACKED: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}
# most bytes of one system call
_AT_ONCE = 2**30
#: what a system without a call says, or a sandbox that forbids it
_REFUSED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM})
# written to a file where pages cannot be allocated
_ZEROS = bytes(2**20)

# process, bytes, tag; the name follows
_LOCATION = struct.Struct(f"<QQ{TAG_SIZE}s")

_numbers = itertools.count(1)
#: returns the folder of the run on this host; called where it is needed only
Folder: TypeAlias = Callable[[], Path]


@values.frozen
class Location:
    """Location by which processes of the same host find memory."""

    #: its name, and the process that has it open
    name: str
    pid: int
    #: its bytes
    size: int
    tag: bytes

    def packed(self) -> bytes:
        """Pack it as bytes."""
        return _LOCATION.pack(self.pid, self.size, self.tag) + self.name.encode()

    @classmethod
    def unpack(cls, body: Buffer) -> Location:
        """Unpack the bytes of :meth:`packed`.

        Raises:
            WireError: they are malformed.
        """
        try:
            pid, size, tag = _LOCATION.unpack_from(body)
            name = bytes(body[_LOCATION.size :]).decode()
        except (struct.error, UnicodeDecodeError) as error:
            msg = "the location of shared memory makes no sense"
            raise WireError(msg) from error
        return cls(name, pid, size, tag)


def create(folder: Folder, ident: str, title: str = "fiber-memory") -> tuple[int, Path | None]:
    """Create empty memory: its descriptor, and its path if it is a file; ``title`` is for people."""
    fd = _memfd(title)
    if fd is not None:
        return fd, None
    path = folder() / f"m{ident}-{next(_numbers)}"
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600), path


def create_unnamed(title: str) -> int:
    """Create empty memory that is passed on by its descriptor only: that descriptor.

    A memfd, which cannot be made shorter, or where the system refuses one, a file that is in no folder.
    """
    fd = _memfd(title)
    if fd is not None:
        if sys.platform == "linux":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return fd
    import tempfile

    shared = "/dev/shm"  # noqa: S108 - the file has no name there
    with tempfile.TemporaryFile(
        dir=shared if os.access(shared, os.W_OK | os.X_OK) else None
    ) as file:
        return fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)


def location_of(fd: int, path: Path | None, size: int, tag: bytes) -> Location:
    """Location of memory that this process has open."""
    name = f"{DESCRIPTOR}{fd}" if path is None else path.name
    return Location(name, os.getpid(), size, tag)


def find(location: Location, folder: Folder, *, write: bool) -> int | None:
    """Open the memory at a location: a descriptor; None where it is not on this host."""
    path = _path(location, folder)
    if path is None:
        return None
    # a peer named it: opening a FIFO must not block
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size == location.size:
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
        if not _allocate(fd, size):
            for begin in range(0, size, len(_ZEROS)):
                write(fd, _ZEROS[: size - begin], begin)
    except OSError as error:
        raise no_room_error(size, path, error) from error
    if sys.platform == "linux" and path is None:
        # no process can truncate it, which would kill those that map it
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def _allocate(fd: int, size: int) -> bool:
    """Have the system allocate all pages; False where it cannot, or a sandbox forbids it."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def check_room(size: int, path: Path | None) -> None:
    """Check that there is enough free memory: the kernel would kill a process rather than fail.

    Raises:
        OSError: there is not.
    """
    if path is None and size >= _CHECK_FROM and size > available():
        raise no_room_error(size, path, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))


def no_room_error(size: int, path: Path | None, cause: OSError) -> OSError:
    """Make the error of a lack of room, with advice."""
    where = "in memory" if path is None else f"in {path.parent}"
    text = f"no room for {size} bytes of shared memory {where}: {explained(cause)}; make it smaller"
    if path is not None:
        text += ", or set XDG_RUNTIME_DIR to a folder with more room"
    error = OSError(cause.errno, text)
    error.__cause__ = cause
    return error


def release(fd: int, path: Path | None, maker: int) -> None:
    """Close it: no other process can map it from now on; mappings stay. ``maker`` is a pid."""
    os.close(fd)
    # not in a process that the user forked, whose copy of this ends as well
    if path is not None and os.getpid() == maker:
        path.unlink(missing_ok=True)


def write(fd: int, data: Buffer, begin: int) -> None:
    """Write all of some bytes at a position of a file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view[:_AT_ONCE], begin)
        view, begin = view[written:], begin + written


def _path(location: Location, folder: Folder) -> Path | None:
    if location.name.startswith(DESCRIPTOR):
        number = location.name.removeprefix(DESCRIPTOR)
        return Path(f"/proc/{location.pid}/fd/{number}") if number.isdecimal() else None
    return folder() / location.name if _NAME.fullmatch(location.name) else None


def _memfd(title: str) -> int | None:
    if sys.platform == "linux":
        # some builds of Python do not have it, some sandboxes forbid it
        with contextlib.suppress(AttributeError, OSError):
            return os.memfd_create(title, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    return None


def available() -> int:
    """Bytes of free memory and swap, within the limit of this process's cgroup."""
    import psutil

    from fiber._base.cgroups import memory_total

    free = psutil.virtual_memory().available + psutil.swap_memory().free
    return min(int(free), memory_total() * 2**20)


class Arena:
    """An arena in the process that makes it.

    Args:
        size: usable bytes, without the head; rounded up to whole pages.
        folder: returns the folder for a file.
        ident: the maker's identity within the run.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, size: int, folder: Folder, ident: str) -> None:
        pages = -(-(HEAD + size) // mmap.PAGESIZE)
        #: bytes in all, the head included
        self.size = pages * mmap.PAGESIZE
        tag = secrets.token_bytes(TAG_SIZE)
        fd, path = create(folder, ident)
        self._closing = weakref.finalize(self, release, fd, path, os.getpid())
        self._closing.atexit = path is not None
        try:
            reserve(fd, self.size, path)
            self.memory = mmap.mmap(fd, self.size)
        except BaseException:
            self._closing()
            raise
        self.memory[:TAG_SIZE] = tag
        #: location for processes of this host
        self.location = location_of(fd, path, self.size, tag)
        with _mapping:
            _mapped[tag] = self.memory

    def close(self) -> None:
        """Close it: no other process can map it from now on; mappings stay. Idempotent."""
        self._closing()


# by tag: a process maps an arena once
_mapped: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()
_mapping = threading.Lock()


def map_arena(location: Location, folder: Folder) -> mmap.mmap | None:
    """Map an arena of another process; None where it is not on this host."""
    with _mapping:
        found = _mapped.get(location.tag)
        if found is None:
            found = _map(location, folder)
            if found is not None:
                _mapped[location.tag] = found
        return found


def _map(location: Location, folder: Folder) -> mmap.mmap | None:
    fd = find(location, folder, write=True)
    if fd is None:
        return None
    try:
        memory = mmap.mmap(fd, location.size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return memory if memory[:TAG_SIZE] == location.tag else None


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
        self._fd, self._path = create(folder, ident)
        self._closing = weakref.finalize(self, release, self._fd, self._path, os.getpid())
        try:
            check_room(self._size, self._path)
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
        location = location_of(self._fd, self._path, self._size, self._tag)
        return Sealed(self._fd, location, self._path)

    def discard(self) -> None:
        """Discard it; idempotent."""
        self._closing()

    def _write(self, begin: int, data: Buffer) -> None:
        try:
            write(self._fd, data, begin)
        except OSError as error:
            raise no_room_error(self._size, self._path, error) from error


class Sealed:
    """Sealed memory, in its maker's process or another. Made by :func:`seal` and :func:`find_sealed`."""

    def __init__(self, fd: int, location: Location, path: Path | None = None) -> None:
        self._fd = fd
        #: location for processes of this host, by this process
        self.location = location
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._closing = weakref.finalize(self, release, fd, path, os.getpid())
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
        return mmap.mmap(self._fd, size, mmap.MAP_PRIVATE, protection, **UNTRACKED)


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


def find_sealed(location: Location, folder: Folder) -> Sealed | None:
    """Open sealed memory of another process; None where it is not on this host."""
    fd = find(location, folder, write=False)
    if fd is None:
        return None
    by_descriptor = location.name.startswith(DESCRIPTOR)
    if not _is_it(fd, location) or (by_descriptor and not _is_sealed(fd)):
        os.close(fd)
        return None
    return Sealed(
        fd,
        location_of(fd, None, location.size, location.tag) if by_descriptor else location,
    )


def _is_it(fd: int, location: Location) -> bool:
    return location.size >= HEAD and os.pread(fd, TAG_SIZE, 0) == location.tag


def _is_sealed(fd: int) -> bool:
    if sys.platform == "linux":
        # fails for files without seals
        with contextlib.suppress(OSError):
            return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    return False
