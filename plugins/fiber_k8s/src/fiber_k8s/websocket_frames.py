"""Frames of a WebSocket as a client sees them (RFC 6455); pure, no sockets."""

from __future__ import annotations

import os
import struct

from fiber.exceptions import BackendError

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "TEXT", "Frames", "frame"]

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA

_FINAL = 0x80
_MASKED = 0x80
_SMALL, _SHORT, _LONG = 125, 126, 127
#: largest frame of a server; its pieces are some tens of kilobytes
_MOST = 64 * 2**20


def frame(opcode: int, *pieces: bytes) -> bytes:
    """A whole message, masked as a client has to."""
    body = b"".join(pieces)
    size = len(body)
    head = struct.pack("!B", _FINAL | opcode)
    if size <= _SMALL:
        head += struct.pack("!B", _MASKED | size)
    elif size < 1 << 16:
        head += struct.pack("!BH", _MASKED | _SHORT, size)
    else:
        head += struct.pack("!BQ", _MASKED | _LONG, size)
    mask = os.urandom(4)
    # as one large number: nothing else is as fast without another library
    wide = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    masked = (int.from_bytes(body, "little") ^ wide).to_bytes(size, "little")
    return head + mask + masked


class Frames:
    """Takes bytes of the server, gives whole messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._begun: tuple[int, bytearray] | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Opcode and body of each message that is whole now.

        Raises:
            BackendError: what came is no WebSocket.
        """
        self._bytes += data
        found = []
        while (one := self._next()) is not None:
            final, opcode, body = one
            if opcode >= CLOSE:
                found.append((opcode, body))
                continue
            kind, whole = self._begun or (opcode, bytearray())
            whole += body
            self._begun = None if final else (kind, whole)
            if final:
                found.append((kind, bytes(whole)))
        return found

    def _next(self) -> tuple[bool, int, bytes] | None:
        if len(self._bytes) < 2:
            return None
        first, second = self._bytes[0], self._bytes[1]
        size, begin = second & 0x7F, 2
        if size == _SHORT:
            begin = 4
        elif size == _LONG:
            begin = 10
        if len(self._bytes) < begin:
            return None
        if begin > 2:
            size = int.from_bytes(self._bytes[2:begin], "big")
        if second & _MASKED or first & 0x70 or size > _MOST:
            msg = "the cluster's answer is no WebSocket; is a proxy between here and there?"
            raise BackendError(msg)
        if len(self._bytes) < begin + size:
            return None
        body = bytes(memoryview(self._bytes)[begin : begin + size])
        del self._bytes[: begin + size]
        return bool(first & _FINAL), first & 0x0F, body
