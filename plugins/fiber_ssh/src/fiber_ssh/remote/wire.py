"""What a host's agent and the programs that use it say to each other: messages and output."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["STREAMS", "Data", "Decoder", "Message", "pack", "pack_data"]

Message = dict[str, Any]

_HEADER = struct.Struct("!IB")
_DATA = struct.Struct("!IBQ")
_JSON, _OUTPUT = 0, 1
#: nothing that either side sends is larger
_LIMIT = 64 * 1024 * 1024

#: names of a job's outputs; the number of each is what is sent
STREAMS = ("stdout", "stderr")


class Data:
    """A piece of a job's output.

    Args:
        number: which request it answers.
        stream: which output, see STREAMS.
        content: the bytes.
        offset: where the next piece begins in the job's log.
    """

    __slots__ = ("content", "number", "offset", "stream")

    def __init__(self, number: int, stream: int, content: bytes, offset: int) -> None:
        self.number = number
        self.stream = stream
        self.content = content
        self.offset = offset


def pack(message: Message) -> bytes:
    """A message as it is sent."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(len(body), _JSON) + body


def pack_data(number: int, stream: int, content: bytes, offset: int) -> bytes:
    """A piece of output as it is sent."""
    head = _HEADER.pack(_DATA.size + len(content), _OUTPUT)
    return head + _DATA.pack(number, stream, offset) + content


class Decoder:
    """Makes messages of bytes as they come."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message | Data]:
        """Yield what is complete with these bytes.

        Raises:
            ValueError: they make no sense; the connection is of no more use.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._buffer)
            if length > _LIMIT or kind > _OUTPUT or (kind == _OUTPUT and length < _DATA.size):
                msg = f"a frame of kind {kind} with {length} bytes makes no sense"
                raise ValueError(msg)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            if kind == _OUTPUT:
                number, stream, offset = _DATA.unpack_from(body)
                yield Data(number, stream, body[_DATA.size :], offset)
                continue
            try:
                message = json.loads(body)
            except RecursionError as error:
                msg = "a message is nested too deep"
                raise ValueError(msg) from error
            if not isinstance(message, dict):
                msg = "a message that is no object makes no sense"
                raise ValueError(msg)  # noqa: TRY004 - what was sent is wrong, not a caller's type
            yield message
