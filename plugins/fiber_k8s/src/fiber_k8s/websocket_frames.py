"""WebSocket frames of the client's side (RFC 6455, section 5); pure, no sockets."""

from __future__ import annotations

import os
import struct

from fiber.exceptions import BackendError

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "TEXT", "FrameParser", "encode_frame"]

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_CONTINUATION = 0x0
_OPCODES = frozenset({_CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})

_FIN = 0x80
_MASKED = 0x80
_MAX_SMALL, _SIZE_16, _SIZE_64 = 125, 126, 127
#: most bytes in a message of a server; usual ones have some tens of kilobytes
_MAX_MESSAGE = 64 * 2**20


def encode_frame(opcode: int, *pieces: bytes) -> bytes:
    """Return a message as one masked frame.

    Args:
        opcode: such as ``BINARY``.
        pieces: payload, concatenated.
    """
    body = b"".join(pieces)
    size = len(body)
    head = struct.pack("!B", _FIN | opcode)
    if size <= _MAX_SMALL:
        head += struct.pack("!B", _MASKED | size)
    elif size < 1 << 16:
        head += struct.pack("!BH", _MASKED | _SIZE_16, size)
    else:
        head += struct.pack("!BQ", _MASKED | _SIZE_64, size)
    mask = os.urandom(4)
    # masked as one large integer, the fastest way without another library
    wide = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    masked = (int.from_bytes(body, "little") ^ wide).to_bytes(size, "little")
    return head + mask + masked


class FrameParser:
    """Incremental parser of a server's frames; joins fragmented messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._fragments: tuple[int, bytearray] | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Parse more bytes; return opcode and payload of each message that is complete now.

        Args:
            data: received bytes.

        Raises:
            BackendError: they are not a server's frames.
        """
        self._bytes += data
        found = []
        while (one := self._next()) is not None:
            is_final, opcode, body = one
            if opcode >= CLOSE:
                found.append((opcode, body))
                continue
            if (opcode == _CONTINUATION) is (self._fragments is None):
                raise _no_websocket()
            kind, message = self._fragments or (opcode, bytearray())
            if len(message) + len(body) > _MAX_MESSAGE:
                raise _no_websocket()
            message += body
            self._fragments = None if is_final else (kind, message)
            if is_final:
                found.append((kind, bytes(message)))
        return found

    def _next(self) -> tuple[bool, int, bytes] | None:
        if len(self._bytes) < 2:
            return None
        first, second = self._bytes[0], self._bytes[1]
        size, begin = second & 0x7F, 2
        if size == _SIZE_16:
            begin = 4
        elif size == _SIZE_64:
            begin = 10
        if len(self._bytes) < begin:
            return None
        if begin > 2:
            size = int.from_bytes(self._bytes[2:begin], "big")
        opcode, is_final = first & 0x0F, bool(first & _FIN)
        # frames that control the connection are short and whole
        most = _MAX_MESSAGE if opcode < CLOSE else _MAX_SMALL if is_final else -1
        if second & _MASKED or first & 0x70 or opcode not in _OPCODES or size > most:
            raise _no_websocket()
        if len(self._bytes) < begin + size:
            return None
        body = bytes(memoryview(self._bytes)[begin : begin + size])
        del self._bytes[: begin + size]
        return is_final, opcode, body


def _no_websocket() -> BackendError:
    return BackendError("the cluster's answer is no WebSocket; is a proxy between here and there?")
