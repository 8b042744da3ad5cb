"""A job's output on its host's disk: pieces in the order in which they came, each with its stream."""

from __future__ import annotations

import struct
from collections import deque

__all__ = ["LogReader", "LogWriter", "offset_of_tail"]

_HEAD = struct.Struct("!BI")
_CHUNK = 64 * 1024


class LogWriter:
    """Appends to a job's log; full disks lose output, not jobs.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size = self._file.tell()
        #: what the disk said when output was lost
        self.problem = ""

    def write(self, stream: int, data: bytes) -> None:
        """Append a piece."""
        for start in range(0, len(data), _CHUNK):
            piece = data[start : start + _CHUNK]
            record = _HEAD.pack(stream, len(piece)) + piece
            try:
                if self._file.write(record) != len(record):
                    # half a record would make the rest unreadable
                    self._file.truncate(self._size)
                    self.problem = "the disk is full"
                    continue
            except OSError as error:
                self.problem = str(error)
                self._truncate()
                continue
            self._size += len(record)

    def _truncate(self) -> None:
        try:
            self._file.truncate(self._size)
        except OSError as error:
            self.problem = str(error)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


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
