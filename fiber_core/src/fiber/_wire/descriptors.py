"""File descriptors of this process: limits, inspection, whether they are still the same files, who owns them; one that tells of items."""

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
from typing import Protocol

from fiber._base import values
from fiber._base.interpreter import unless_finalizing
from fiber._base.threads import TURN, in_turns

#: address and port; the address packed as by ``socket.inet_pton``, IPv4 in four bytes
SocketAddress = tuple[bytes, int]

_V4_IN_V6 = bytes(10) + b"\xff\xff"
#: numbers tried one by one where no folder lists the descriptors
_MAX_NUMBERS = 2**16
#: bytes of the largest ``sockaddr`` of any system
_MAX_SOCKADDR = 128
#: ``tcpi_bytes_received`` in Linux's ``struct tcp_info``
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128
#: Linux's option whose value no other socket has, until the system starts anew, and its bytes
_SO_COOKIE, _COOKIE_SIZE = 57, 8


@values.frozen
class Connection:
    """A TCP connection that this process has accepted."""

    #: number of its descriptor
    descriptor: int
    #: address of this side
    local: SocketAddress
    #: address of the other side
    peer: SocketAddress


def raise_limit_to_hard() -> int:
    """Raise the soft limit of open files to the hard one; returns the soft limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS has a hard limit of "infinity" and accepts no more than OPEN_MAX
        for limit in (hard, 10240):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (OSError, ValueError):
                continue
            break
    return soft


def raise_limit_for(connections: int) -> None:
    """Raise the soft limit of open files where half of it is taken by connections.

    A program with few of them keeps the limit that it was started with: what it starts in turn may
    use ``select()``, which cannot watch descriptors beyond the usual one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or 2 * connections < soft:
        return
    wanted = 4 * soft if hard == resource.RLIM_INFINITY else min(4 * soft, hard)
    if wanted > soft:
        # the system may have a lower limit still; then opening a descriptor fails with the reason
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limited_share(part: int, most: int) -> int:
    """The soft limit of open files divided by ``part``, at most ``most``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // part)


def open_numbers() -> Iterable[int]:
    """Numbers of all open descriptors, and possibly of some that are closed."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(folder)]  # noqa: PTH208 - least that can go wrong after a fork
        except OSError:
            continue
    # no such folder, or no descriptor left to read it with
    return range(limited_share(1, _MAX_NUMBERS))


def unmapped(host: bytes) -> bytes:
    """Packed address, with an IPv4-mapped IPv6 address as its four bytes of IPv4."""
    return host[12:] if host[:12] == _V4_IN_V6 else host


class AcceptedConnections:
    """Finds and ends accepted TCP connections whose descriptors a library owns (and may close).

    For one thread. Calls the C library directly: a ``socket.socket`` would make the descriptor
    non-blocking where the program has set a default timeout.
    """

    def __init__(self) -> None:
        import ctypes  # most processes need none of this

        self._reference = ctypes.byref
        self._system = ctypes.CDLL(None)
        self._name = ctypes.create_string_buffer(_MAX_SOCKADDR)
        self._info = ctypes.create_string_buffer(_RECEIVED_AT + _RECEIVED.size)
        self._size = ctypes.c_uint()
        # opened now: there may be no descriptor left when one is needed
        self._devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._duplicate = os.dup(self._devnull)

    def accepted(self, listeners: Iterable[SocketAddress]) -> Iterator[Connection]:
        """Connections accepted by some listeners, in the order of their descriptors.

        Args:
            listeners: addresses of the listeners; all zeros stands for any address.
        """
        ports: dict[int, set[bytes]] = {}
        for host, port in listeners:
            ports.setdefault(port, set()).add(host)
        for number in open_numbers():
            local = self._socket_address(self._system.getsockname, number)
            if local is None or local[1] not in ports:
                continue
            if all(host != local[0] and any(host) for host in ports[local[1]]):
                # accepted by another listener, at another address of this host
                continue
            peer = self._socket_address(self._system.getpeername, number)
            if peer is not None:
                yield Connection(number, local, peer)

    def is_silent(self, connection: Connection) -> bool:
        """True where no byte was ever received by it; always False where the system cannot tell."""
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
        """Shut a connection down if its descriptor is still that connection; its owner sees it broken."""
        if self._socket_address(self._system.getpeername, connection.descriptor) != connection.peer:
            return
        try:
            os.dup2(connection.descriptor, self._duplicate, inheritable=False)
        except OSError:
            # closed just now
            return
        try:
            # checked again on the duplicate, which the owner cannot close
            if self._socket_address(self._system.getpeername, self._duplicate) == connection.peer:
                self._system.shutdown(self._duplicate, socket.SHUT_RDWR)
        finally:
            os.dup2(self._devnull, self._duplicate, inheritable=False)

    def close(self) -> None:
        """Close this object's own descriptors; to be called once."""
        os.close(self._devnull)
        os.close(self._duplicate)

    def _socket_address(self, call: Callable[..., int], number: int) -> SocketAddress | None:
        self._size.value = _MAX_SOCKADDR
        if call(number, self._name, self._reference(self._size)):
            return None
        data = self._name.raw
        # BSD has a byte for the length in front of the family
        family = data[1] if sys.platform == "darwin" else int.from_bytes(data[:2], sys.byteorder)
        port = int.from_bytes(data[2:4], "big")
        if family == socket.AF_INET:
            return data[4:8], port
        if family == socket.AF_INET6:
            return unmapped(data[8:24]), port
        return None


def borrowed_socket(descriptor: int) -> socket.socket:
    """Socket object for a descriptor shared with others, its blocking mode unchanged; detach it.

    With a default timeout set, Python would make the socket non-blocking for all that share it. So
    the default is unset meanwhile, which is only safe in processes with one thread.

    Raises:
        OSError: the descriptor is no socket.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        return socket.socket(fileno=descriptor)
    finally:
        socket.setdefaulttimeout(timeout)


def open_descriptors() -> set[int]:
    """Numbers of the open descriptors."""
    # without the one by which the folder was read, which is listed there
    return {number for number in open_numbers() if _file(number) is not None}


class Owned(Protocol):
    """What has descriptors of ours: :class:`OwnedDescriptors` or :class:`OwnedSocket`."""

    @property
    def are_intact(self) -> bool:
        """False once one of them was closed or refers to another file."""


class OwnedDescriptors:
    """Descriptors of ours, with the identity of the files that they were opened for.

    User code may close them (``os.closerange``, as a ``daemonize`` does) or replace them
    (``os.dup2``) without notice. By number alone we would then read, write and close other files.

    Args:
        numbers: the open descriptors.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        found = [(number, os.fstat(number)) for number in numbers]
        self._files = [(number, file.st_dev, file.st_ino) for number, file in found]

    @property
    def are_intact(self) -> bool:
        """False once one of them was closed or refers to another file."""
        # as _file() has it, without its calls: over nng, this runs for each message of a worker
        try:
            for number, device, inode in self._files:
                found = os.fstat(number)
                if found.st_ino != inode or found.st_dev != device:
                    return False
        except OSError:
            return False
        return True


class OwnedSocket(socket.socket):
    """Socket that is closed when it is collected, unless its number belongs to another file by then.

    Python's own warns then, and closes what has the number.

    Args:
        family: as of ``socket.socket``.
        kind: as its ``type``.
        descriptor: of an open socket; None to make one.
    """

    def __init__(self, family: int, kind: int, descriptor: int | None = None) -> None:
        super().__init__(family, kind, fileno=descriptor)
        self._owned = OwnedDescriptors((self.fileno(),))
        self._cookie = b""
        if sys.platform == "linux":
            # some sandboxes have none
            with contextlib.suppress(OSError):
                self._cookie = self.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_SIZE)

    @property
    def are_intact(self) -> bool:
        """As of :class:`OwnedDescriptors`; asked for each message of a worker."""
        if not self._cookie:
            return self._owned.are_intact
        # without an object of all that fstat() tells
        try:
            return self.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_SIZE) == self._cookie
        except OSError:
            return False

    def release(self) -> None:
        """Close it, but not a file of others that has its number by now. Idempotent."""
        if self.fileno() < 0:
            return
        if self.are_intact:
            self.close()
        else:
            self.detach()

    @unless_finalizing
    def __del__(self) -> None:
        self.release()


def _file(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def await_readable(poll: select.poll, numbers: Iterable[int], seconds: float | None) -> bool:
    """Wait until one of some descriptors is readable or in error; False when the time has passed.

    Args:
        poll: object with all the descriptors registered.
        numbers: the same descriptors.
        seconds: longest wait; None for ever.
    """
    try:
        if seconds is None:
            # as in_turns() has it, without its calls: a worker waits so for each of its messages
            while not poll.poll(1000 * TURN):
                pass
            return True
        return in_turns(lambda turn: bool(poll.poll(1000 * turn)), seconds)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # poll() refuses more descriptors than the limit of open files, which may be 0 by now
    try:
        return in_turns(lambda turn: bool(select.select(list(numbers), (), (), turn)[0]), seconds)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return True


class ReadyFd:
    """Descriptor that is readable while there are items, for ``select`` and ``wait``; not thread-safe.

    An eventfd on Linux, else a pipe.
    """

    def __init__(self) -> None:
        if sys.platform == "linux":
            self.fd = self._write = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.fd, self._write = os.pipe()
            os.set_blocking(self.fd, False)
        #: True while it is readable
        self.is_ready = False

    def set(self, ready: bool) -> None:
        """Make it readable, or not."""
        if ready == self.is_ready or self.fd < 0:
            return
        self.is_ready = ready
        if ready:
            # the size of a write to an eventfd; any size will do for a pipe
            os.write(self._write, (1).to_bytes(8, sys.byteorder))
        else:
            os.read(self.fd, 8)

    def close(self) -> None:
        """Release the descriptor; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            if self._write != self.fd:
                os.close(self._write)
            self.fd = self._write = -1


def fill_standard_descriptors() -> None:
    """Open ``/dev/null`` as each of the three standard descriptors that is closed."""
    # where one is closed, the next pipe would get its number and be taken for standard output
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    # what the interpreter found closed at its start is no stream to it; jobs have pipes there
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            errors = "backslashreplace" if number == 2 else None
            setattr(sys, name, os.fdopen(number, mode, errors=errors, closefd=False))


class Descriptors:
    """A set of descriptors that a supervisor owns, so that a forked child can close them all.

    Bare numbers, because objects left over in a forked child would close theirs a second time,
    when another file has the number.
    """

    def __init__(self) -> None:
        self._owned: set[int] = set()

    def __len__(self) -> int:
        return len(self._owned)

    def own(self, descriptor: int) -> int:
        """Take over a descriptor; returns it."""
        self._owned.add(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        """A close-on-exec pipe, both ends owned: read end, write end."""
        reader, writer = os.pipe()
        self._owned |= {reader, writer}
        return reader, writer

    def close(self, descriptor: int) -> None:
        """Close a descriptor that is owned; others are left alone."""
        if descriptor in self._owned:
            self._owned.discard(descriptor)
            os.close(descriptor)

    def release(self, descriptor: int) -> int:
        """Stop owning a descriptor without closing it; returns it."""
        self._owned.discard(descriptor)
        return descriptor

    def close_all(self) -> None:
        """Close everything that is owned, in as few calls as possible."""
        ranges: list[list[int]] = []
        for descriptor in sorted(self._owned):
            if ranges and ranges[-1][1] == descriptor:
                ranges[-1][1] += 1
            else:
                ranges.append([descriptor, descriptor + 1])
        self._owned.clear()
        for low, high in ranges:
            with contextlib.suppress(OSError):
                os.closerange(low, high)
