"""Connection to a container's standard streams, over any kind of socket of the SDK.

Output is framed as in "Stream format" of the Engine API's attach call: one byte for the stream,
three of zero, four for the length (big-endian), the data.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

STDOUT, STDERR = 1, 2
_HEADER = struct.Struct(">BxxxL")
_PIECE = 1 << 16


class Stream:
    """Standard streams of an attached container; read by one thread, closed by any.

    Args:
        raw: the SDK's "socket": over a Unix socket or TCP a file around one, with TLS the socket,
            over ssh a channel.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._socket: Any = getattr(raw, "_sock", raw)
        self._closed = threading.Event()
        self._buffer = b""
        self.set_timeout(None)

    def set_timeout(self, seconds: float | None) -> None:
        """Set the seconds after which :meth:`read` raises TimeoutError; None for never."""
        if hasattr(self._socket, "settimeout"):
            # where it was closed meanwhile, the next read ends
            with contextlib.suppress(OSError):
                self._socket.settimeout(seconds)

    def write(self, data: bytes) -> None:
        """Write to the container's standard input, all of it."""
        self._socket.sendall(data)

    def end_input(self) -> None:
        """Close the container's standard input, where the connection can be closed by half."""
        with contextlib.suppress(OSError, AttributeError):
            half = getattr(self._socket, "shutdown_write", None)
            half() if half else self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> tuple[int, bytes] | None:
        """The next piece of output and which stream it belongs to; None at the end.

        Raises:
            TimeoutError: nothing came within the timeout.
        """
        if not self._fill(_HEADER.size):
            return None
        number, length = _HEADER.unpack_from(self._buffer)
        if not self._fill(_HEADER.size + length):
            return None
        data = self._buffer[_HEADER.size : _HEADER.size + length]
        self._buffer = self._buffer[_HEADER.size + length :]
        return number, data

    def read_raw(self) -> bytes:
        """The next bytes of a container with a terminal; empty at the end."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        return self._receive()

    def close(self) -> None:
        """Close the connection; a thread that reads it sees its end. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # the response first: from Python 3.14 on it complains if what it reads from is closed
        for thing in (getattr(self._raw, "_response", None), self._raw, self._socket):
            if thing is not None:
                with contextlib.suppress(OSError):
                    thing.close()

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            data = self._receive()
            if not data:
                return False
            self._buffer += data
        return True

    def _receive(self) -> bytes:
        try:
            return bytes(self._socket.recv(_PIECE))
        except TimeoutError:
            raise
        except OSError:
            # the engine went away, or close() was called
            return b""
