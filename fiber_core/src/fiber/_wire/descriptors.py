"""The descriptors of this process: room for many, which are connections, and which still ours."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

#: an address and a port; the address packed, as ``socket.inet_pton`` does, IPv4 in four bytes
Name = tuple[bytes, int]

_V4_IN_V6 = bytes(10) + b"\xff\xff"
#: descriptors that are looked for one by one, at most
_MOST_NUMBERS = 2**16
#: the largest address of a socket that any system has
_LONGEST_NAME = 128
#: where ``struct tcp_info`` of Linux has the bytes received
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128


class Connection(NamedTuple):
    """A TCP connection that this process has accepted."""

    descriptor: int
    local: Name
    peer: Name


def make_room(connections: int) -> None:
    """Raise the soft limit of open files where half of it is taken by connections.

    A program with few of them keeps the limit that it was started with: what it starts in turn may
    use ``select()``, which cannot watch descriptors beyond the usual one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or 2 * connections < soft:
        return
    wanted = 4 * soft if hard == resource.RLIM_INFINITY else min(4 * soft, hard)
    if wanted > soft:
        # a system may have a lower limit still, which is told when there is no descriptor left
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share(part: int, most: int) -> int:
    """One of so many equal parts of the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // part)


def numbers() -> Iterable[int]:
    """The descriptors that are open, and maybe some that are not."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(folder)]  # noqa: PTH208 - least that can go wrong after a fork
        except OSError:
            continue
    # there is no such folder, or no descriptor left to read it with
    return range(share(1, _MOST_NUMBERS))


def plain(host: bytes) -> bytes:
    """A packed address; of four bytes where it is IPv4 written as IPv6."""
    return host[12:] if host[:12] == _V4_IN_V6 else host


class Connections:
    """TCP connections of this process that somebody else owns, who may close them at any time.

    For one thread. The system is asked directly: a ``socket.socket`` would make them non-blocking
    where the program has set a default timeout.
    """

    def __init__(self) -> None:
        import ctypes  # most processes need none of this

        self._reference = ctypes.byref
        self._system = ctypes.CDLL(None)
        self._name = ctypes.create_string_buffer(_LONGEST_NAME)
        self._info = ctypes.create_string_buffer(_RECEIVED_AT + _RECEIVED.size)
        self._size = ctypes.c_uint()
        # there may be no descriptor left when one is wanted
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._own = os.dup(self._nothing)

    def accepted(self, listeners: Iterable[Name]) -> Iterator[Connection]:
        """Those that came in by some listeners, by number.

        Args:
            listeners: their addresses; one that is all zeros is any.
        """
        wanted: dict[int, set[bytes]] = {}
        for host, port in listeners:
            wanted.setdefault(port, set()).add(host)
        for number in numbers():
            local = self._ask(self._system.getsockname, number)
            if local is None or local[1] not in wanted:
                continue
            if all(host != local[0] and any(host) for host in wanted[local[1]]):
                # somebody else listens at another address of this host
                continue
            peer = self._ask(self._system.getpeername, number)
            if peer is not None:
                yield Connection(number, local, peer)

    def is_silent(self, connection: Connection) -> bool:
        """True where nothing ever came by it, and the system tells."""
        if sys.platform == "linux":
            self._size.value = len(self._info)
            failed = self._system.getsockopt(
                connection.descriptor,
                socket.IPPROTO_TCP,
                socket.TCP_INFO,
                self._info,
                self._reference(self._size),
            )
            if not failed and self._size.value >= len(self._info):
                return _RECEIVED.unpack_from(self._info, _RECEIVED_AT) == (0,)
        return False

    def end(self, connection: Connection) -> None:
        """End one, where its descriptor is still that connection; its owner sees it broken."""
        if self._ask(self._system.getpeername, connection.descriptor) != connection.peer:
            return
        try:
            os.dup2(connection.descriptor, self._own, inheritable=False)
        except OSError:
            # closed just now
            return
        try:
            # what we hold is nobody else's to close
            if self._ask(self._system.getpeername, self._own) == connection.peer:
                self._system.shutdown(self._own, socket.SHUT_RDWR)
        finally:
            os.dup2(self._nothing, self._own, inheritable=False)

    def close(self) -> None:
        """Give up the descriptors. Once."""
        os.close(self._nothing)
        os.close(self._own)

    def _ask(self, call: Callable[..., int], number: int) -> Name | None:
        self._size.value = _LONGEST_NAME
        if call(number, self._name, self._reference(self._size)):
            return None
        data = self._name.raw
        # BSD has a byte for the length in front of the family
        family = data[1] if sys.platform == "darwin" else int.from_bytes(data[:2], sys.byteorder)
        port = int.from_bytes(data[2:4], "big")
        if family == socket.AF_INET:
            return data[4:8], port
        if family == socket.AF_INET6:
            return plain(data[8:24]), port
        return None


def borrowed(descriptor: int) -> socket.socket:
    """A socket object for a descriptor whose mode its other holders set; to be detached.

    With a default timeout, Python makes the socket itself non-blocking, for all that share it. So
    there is none meanwhile, and this is for processes with one thread.

    Raises:
        OSError: it is no socket.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        return socket.socket(fileno=descriptor)
    finally:
        socket.setdefaulttimeout(timeout)


def in_use() -> set[int]:
    """The descriptors that are open."""
    # the one by which a folder of them was read is listed there
    return {number for number in numbers() if _file(number) is not None}


class Held:
    """Descriptors in use, as they were when they were opened.

    User code may close them (``os.closerange``, as a ``daemonize`` does) or put other files in their
    place (``os.dup2``), and tells nobody. By number alone we would then read, write and close
    somebody else's files.

    Args:
        numbers: the descriptors, open.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._files = [(number, _file(number)) for number in numbers]

    @property
    def are_ours(self) -> bool:
        """False once one of them was closed, or is another file."""
        # a loop: this is asked for each message of a worker
        for number, file in self._files:  # noqa: SIM110
            if _file(number) != file:
                return False
        return True


def _file(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def await_readable(poll: select.poll, numbers: Iterable[int], seconds: float | None) -> bool:
    """Wait until one of some descriptors is readable or in error; False when the time has passed.

    Args:
        poll: has all of them.
        numbers: the same.
        seconds: at most; None for ever.
    """
    try:
        return bool(poll.poll(None if seconds is None else 1000 * seconds))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # poll() refuses more descriptors than the limit of open files, which may be 0 by now
    try:
        return bool(select.select(list(numbers), (), (), seconds)[0])
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return True
