"""Reads the log file of a job, which may still grow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["read_log"]

#: seconds between two looks at a file that another process writes: files have no event that
#: every system offers
_LOOK = 0.1


def read_log(
    path: Path, *, tail: int | None = None, is_over: Callable[[], bool] | None = None
) -> Iterator[str]:
    """Yield the lines of a file, without their newlines.

    Args:
        path: the file; one that is missing has no lines yet.
        tail: only the last so many of those there are.
        is_over: given to follow: go on until it is true and all has been read.
    """
    rest = b""
    over = is_over is None
    while not path.exists():
        if over:
            return
        over = is_over is not None and is_over()
        if not over:
            time.sleep(_LOOK)
    with path.open("rb") as file:
        if tail is not None:
            lines = deque(file, maxlen=max(0, tail))
            if lines and not lines[-1].endswith(b"\n"):
                rest = lines.pop()
            yield from map(_text, lines)
        while True:
            rest = yield from _whole_lines(file, rest)
            if over:
                break
            # asked before the last look: what was written until then is seen by it
            over = is_over is not None and is_over()
            if not over:
                time.sleep(_LOOK)
    if rest:
        yield _text(rest)


def _whole_lines(file: BinaryIO, rest: bytes) -> Generator[str, None, bytes]:
    while line := file.readline():
        rest += line
        if not rest.endswith(b"\n"):
            break
        yield _text(rest)
        rest = b""
    return rest


def _text(line: bytes) -> str:
    return line.rstrip(b"\n").decode("utf-8", "replace")
