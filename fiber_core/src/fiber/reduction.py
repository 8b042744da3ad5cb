"""Pickling of objects between processes; as ``multiprocessing.reduction``."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import weakref
from collections.abc import Callable
from multiprocessing.reduction import HAVE_SEND_HANDLE, recvfds, sendfds
from typing import IO, TYPE_CHECKING, Any

from fiber._wire import codec

if TYPE_CHECKING:
    from fiber.connection import Connection

__all__ = [
    "HAVE_SEND_HANDLE",
    "DupFd",
    "ForkingPickler",
    "dump",
    "recv_handle",
    "recvfds",
    "register",
    "send_handle",
    "sendfds",
]


class ForkingPickler(pickle.Pickler):
    """The stdlib's class of this name, over the tables that Fiber pickles by."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

    @classmethod
    def register(cls, type: type[Any], reduce: Callable[[Any], Any]) -> None:  # noqa: A002 - the stdlib's name
        """Register a reducer for a type, as :func:`copyreg.pickle` does."""
        copyreg.pickle(type, reduce)

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> memoryview:
        """Pickle of an object as Fiber sends it."""
        stream = io.BytesIO()
        dump(obj, stream, protocol)
        return stream.getbuffer()

    loads = pickle.loads


register = ForkingPickler.register


def dump(obj: Any, file: IO[bytes], protocol: int | None = None) -> None:
    """Write the pickle of an object, as Fiber sends it, to a file."""
    file.write(codec.pickled(obj) if protocol is None else pickle.dumps(obj, protocol))


class DupFd:
    """A copy of a descriptor, which can be pickled for a process of the same host.

    It is for runs whose processes are all on one host, which is Linux; the process that made it must
    live until the other one has it. Pickling raises TypeError elsewhere.

    Args:
        fd: the descriptor; the caller may close it at once.

    Raises:
        OSError: it is no open descriptor.
    """

    def __init__(self, fd: int) -> None:
        self._own(os.dup(fd))

    def _own(self, fd: int) -> None:
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)

    def detach(self) -> int:
        """The descriptor, which the caller closes.

        Raises:
            ValueError: it was asked for before.
        """
        if self._close.detach() is None:
            msg = "the descriptor of this DupFd was detached before; make another one of it"
            raise ValueError(msg)
        return self._fd

    def __reduce__(self) -> Any:
        from fiber._objects.descriptors import reduce_copy

        if not self._close.alive:
            msg = "cannot pickle a DupFd that was detached; make another one of its descriptor"
            raise ValueError(msg)
        return reduce_copy(self, self._fd, _received)


def _received(fd: int) -> DupFd:
    found = DupFd.__new__(DupFd)
    found._own(fd)  # noqa: SLF001 - the constructor would copy it once more
    return found


def send_handle(conn: Connection, handle: int, destination_pid: int | None) -> None:  # noqa: ARG001 - as in the stdlib
    """Send a descriptor through an end of a pipe; see :class:`DupFd`.

    Args:
        conn: the end; at the other one :func:`recv_handle` is to be called.
        handle: the descriptor.
        destination_pid: ignored, as on any Unix.

    Raises:
        TypeError: its receiver may be on another host.
    """
    conn.send(DupFd(handle))


def recv_handle(conn: Connection) -> int:
    """A descriptor that :func:`send_handle` sent, for the caller to close.

    Raises:
        EOFError: the other end is closed.
        OSError: it cannot be had here; its sender has ended or is on another host.
    """
    found: DupFd = conn.recv()
    return found.detach()


class AbstractReducer:
    """The stdlib's class of this name, with Fiber's functions."""

    def __init__(self, *args: Any) -> None:
        """Accept the stdlib's arguments and ignore them."""

    ForkingPickler = ForkingPickler
    register = register
    dump = dump
    send_handle = send_handle
    recv_handle = recv_handle
    sendfds = sendfds
    recvfds = recvfds
    DupFd = DupFd
