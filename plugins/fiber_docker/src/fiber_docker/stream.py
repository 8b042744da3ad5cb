"""The raw connection to a container's standard streams, whatever the SDK made it of."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

__all__ = ["STDERR", "STDOUT", "Stream"]

STDOUT, STDERR = 1, 2
_HEADER = struct.Struct(">BxxxL")
_PIECE = 1 << 16


class Stream:
    """Both directions of an attached container; read by one thread, closed by any.

    Args:
        raw: what the SDK calls a socket: over a Unix socket or TCP a file around one, with TLS the
            socket, over ssh a channel.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._socket: Any = getattr(raw, "_sock", raw)
        self._closed = threading.Event()
        self._rest = b""
        self.set_timeout(None)

    def set_timeout(self, seconds: float | None) -> None:
        """How long :meth:`read` waits before it raises TimeoutError."""
        if hasattr(self._socket, "settimeout"):
            # whoever closed it meanwhile is told by the next read
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
            TimeoutError: nothing came for the time that was set.
        """
        if not self._fill(_HEADER.size):
            return None
        number, length = _HEADER.unpack_from(self._rest)
        if not self._fill(_HEADER.size + length):
            return None
        data = self._rest[_HEADER.size : _HEADER.size + length]
        self._rest = self._rest[_HEADER.size + length :]
        return number, data

    def read_raw(self) -> bytes:
        """The next bytes of a container with a terminal; empty at the end."""
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        return self._receive()

    def close(self) -> None:
        """Close the connection; whoever reads it sees its end. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thing in (self._raw, self._socket):
            with contextlib.suppress(OSError):
                thing.close()

    def _fill(self, size: int) -> bool:
        while len(self._rest) < size:
            data = self._receive()
            if not data:
                return False
            self._rest += data
        return True

    def _receive(self) -> bytes:
        try:
            return bytes(self._socket.recv(_PIECE))
        except TimeoutError:
            raise
        except OSError:
            # the engine went away, or close() was called
            return b""
