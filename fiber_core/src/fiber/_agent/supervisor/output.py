"""Lines out of the bytes that processes write; pure."""

from __future__ import annotations

from collections import deque

__all__ = ["LineBuffer", "LinePrefix", "LineTail"]

#: a line longer than this is passed on in pieces
LONGEST_LINE = 1 << 16


class LineBuffer:
    """Passes whole lines on and keeps the rest back until it is asked for."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._rest = b""
        self._longest = longest

    @property
    def partial(self) -> bool:
        """True while the beginning of a line is kept back."""
        return bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """Add bytes; returns those that can be passed on."""
        end = data.rfind(b"\n") + 1
        if end:
            ready, self._rest = self._rest + data[:end], data[end:]
        else:
            ready, self._rest = b"", self._rest + data
        if len(self._rest) > self._longest:
            ready, self._rest = ready + self._rest, b""
        return ready

    def flush(self) -> bytes:
        """The beginning of a line that was kept back."""
        rest, self._rest = self._rest, b""
        return rest


class LinePrefix:
    """Puts a text before each line of a stream."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._at_start = True

    def feed(self, data: bytes) -> bytes:
        """The same bytes with the prefix at the start of each line."""
        if not data or not self._prefix:
            return data
        pieces = []
        for line in _lines(data):
            pieces.append(self._prefix + line if self._at_start else line)
            self._at_start = line.endswith(b"\n")
        return b"".join(pieces)


class LineTail:
    """Remembers the last lines of a stream.

    Args:
        count: how many lines.
        width: characters that are kept of each.
    """

    def __init__(self, count: int, width: int = 2000) -> None:
        self._lines: deque[bytes] = deque(maxlen=count)
        self._width = width
        self._open = False

    def feed(self, data: bytes) -> None:
        """Add bytes as they were written, in any pieces."""
        for line in _lines(data):
            if self._open and self._lines:
                if len(self._lines[-1]) < self._width:
                    self._lines[-1] += line
            else:
                self._lines.append(line)
            self._open = not line.endswith(b"\n")

    def lines(self) -> tuple[str, ...]:
        """The lines as text, without their newlines."""
        return tuple(
            line[: self._width].rstrip(b"\r\n").decode("utf-8", "replace") for line in self._lines
        )


def _lines(data: bytes) -> list[bytes]:
    # bytes.splitlines() would also split at carriage returns, which redraw a line
    pieces = data.split(b"\n")
    last = pieces.pop()
    lines = [piece + b"\n" for piece in pieces]
    return [*lines, last] if last else lines
