"""Standard streams of this program, passed on to and from programs elsewhere.

They are inherited and shared: a shell, a terminal multiplexer or another program of the same pipeline may have
made them non-blocking.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

__all__ = ["copy_input", "pieces", "read_until", "write_all"]

_PIECE = 64 * 1024


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to a descriptor, also to one that was made non-blocking.

    Raises:
        OSError: nobody reads them any more.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Yield what comes in a stream; what is typed does not wait for a full piece."""
    read = getattr(stream, "read1", None) or stream.read
    while data := read(_PIECE):
        yield data


def copy_input(
    stream: BinaryIO,
    write: Callable[[bytes], object],
    end: Callable[[], object],
    gone: tuple[type[Exception], ...] = (OSError,),
) -> None:
    """Pass a stream on to a program elsewhere, as its standard input, on a thread ``fiber-stdin``.

    The thread is not waited for: nothing ends the read of a terminal at which nobody types.

    Args:
        stream: read to its end, or until the program is gone.
        write: called with each piece.
        end: called at the end.
        gone: errors of both where the program reads no more, since it has ended or its connection was cut.
    """

    def copy() -> None:
        with contextlib.suppress(*gone):
            for data in pieces(stream):
                write(data)
            end()

    threading.Thread(target=copy, name="fiber-stdin", daemon=True).start()


def read_until(descriptor: int, ending: int, take: Callable[[bytes], object]) -> None:
    """Pass on what comes from a descriptor, b"" at its end, until another descriptor is readable."""
    poll = select.poll()
    poll.register(ending, select.POLLIN)
    poll.register(descriptor, select.POLLIN)
    data = b"-"
    while data and all(ready != ending for ready, _ in poll.poll()):
        try:
            data = os.read(descriptor, _PIECE)
        except OSError:
            data = b""
        take(data)
