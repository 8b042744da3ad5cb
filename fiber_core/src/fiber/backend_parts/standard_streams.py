"""Standard streams of this program, passed on to and from programs elsewhere.

They are inherited and shared: a shell, a terminal multiplexer or another program of the same pipeline may have
made them non-blocking.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

__all__ = ["pieces", "read_until", "write_all"]

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
