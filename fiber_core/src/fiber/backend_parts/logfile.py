"""Lines of output: of a job's log file, which may still grow, and of bytes that come in any pieces."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["read_log", "split_lines"]


def read_log(
    path: Path,
    *,
    interval: float,
    tail: int | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield the lines of a file, without their newlines.

    Args:
        path: the file; one that is missing has no lines yet.
        interval: seconds between two reads of a growing file.
        tail: only so many of the last lines.
        is_over: given to follow the file: go on until it returns True, and all was read.
    """
    rest = b""
    over = is_over is None
    while not path.exists():
        if over:
            return
        over = is_over is not None and is_over()
        if not over:
            time.sleep(interval)
    with path.open("rb") as file:
        if tail is not None:
            lines = deque(file, maxlen=max(0, tail))
            if lines and not lines[-1].endswith(b"\n"):
                rest = lines.pop()
            yield from map(_text, lines)
        while True:
            rest = yield from _complete_lines(file, rest)
            if over:
                break
            # called before the last read, which has all that was written until then
            over = is_over is not None and is_over()
            if not over:
                time.sleep(interval)
    if rest:
        yield _text(rest)


def _complete_lines(file: BinaryIO, rest: bytes) -> Generator[str, None, bytes]:
    while line := file.readline():
        rest += line
        if not rest.endswith(b"\n"):
            break
        yield _text(rest)
        rest = b""
    return rest


def _text(line: bytes) -> str:
    return line.rstrip(b"\n").decode("utf-8", "replace")


def split_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of bytes that come in any pieces, without their newlines; each once it is whole."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from map(_text, lines)
    if rest:
        yield _text(rest)
