"""A job's output on its host's disk: pieces in the order in which they came, each with its stream."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

__all__ = ["LogReader", "offset_of_tail", "pieces"]

_HEAD = struct.Struct("!BI")
_CHUNK = 64 * 1024


def pieces(stream: int, data: bytes) -> Iterator[bytes]:
    """Yield output as it is in a log, each piece with its stream."""
    for start in range(0, len(data), _CHUNK):
        piece = data[start : start + _CHUNK]
        yield _HEAD.pack(stream, len(piece)) + piece


class LogReader:
    """Reads a log from a place on; it may still grow.

    Args:
        path: the file.
        offset: where a piece begins.
    """

    def __init__(self, path: str, offset: int = 0) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        self.offset = offset

    def read(self) -> tuple[int, bytes] | None:
        """The next piece and its stream; None where there is none yet."""
        self._file.seek(self.offset)
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        stream, length = _HEAD.unpack(head)
        # what was not written here may announce gigabytes, for which read() would make room
        data = self._file.read(min(length, _CHUNK))
        if len(data) < length:
            return None
        self.offset += _HEAD.size + length
        return stream, data

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def offset_of_tail(path: str, count: int) -> tuple[int, int]:
    """Where the last lines begin: the offset of a piece, and how many of its bytes to leave out."""
    reader = LogReader(path)
    # one more than the lines: where each ended
    places: deque[tuple[int, int]] = deque(maxlen=max(1, count))
    at_start = True
    end = (0, 0)
    try:
        while True:
            begin = reader.offset
            piece = reader.read()
            if piece is None:
                break
            position = 0
            data = piece[1]
            while position < len(data):
                if at_start:
                    places.append((begin, position))
                newline = data.find(b"\n", position)
                at_start = newline >= 0
                position = newline + 1 if at_start else len(data)
            end = (reader.offset, 0)
    finally:
        reader.close()
    if count <= 0:
        return end
    return places[0] if places else end
