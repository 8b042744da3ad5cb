"""How a job that was started as a program finds its private instructions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from pathlib import Path

from fiber.exceptions import StartError

__all__ = ["VARIABLE", "read_private"]

#: environment variable that tells a job where its instructions are
VARIABLE = "FIBER_BOOTSTRAP"

_FORMS = "fd:<number>, stdin, stdin:<length> or file:<path>"


def read_private(environ: MutableMapping[str, str] = os.environ) -> bytes:
    """Read the instructions, once, and leave no trace of where they were.

    Raises:
        StartError: the variable makes no sense, or there is nothing to read where it says.
    """
    where = environ.pop(VARIABLE, "")
    scheme, _, rest = where.partition(":")
    try:
        if scheme == "fd" and rest.isdigit():
            with open(int(rest), "rb") as stream:
                return stream.read()
        if scheme == "stdin" and (rest.isdigit() or where == "stdin"):
            return _read_stdin(int(rest) if rest else None)
        if scheme == "file" and rest:
            return _read_file(Path(rest))
    except OSError as error:
        msg = f"{VARIABLE} is {where!r}, and nothing can be read there: {error}"
        raise StartError(msg) from error
    msg = f"{VARIABLE} is {where!r}, expected {_FORMS}; this module is started by fiber only"
    raise StartError(msg)


def _read_stdin(length: int | None) -> bytes:
    data = b""
    while length is None or len(data) < length:
        # of the descriptor itself: an object would read on into what is not ours
        more = os.read(0, 1 << 16 if length is None else length - len(data))
        if not more:
            break
        data += more
    if length is not None and len(data) < length:
        msg = f"standard input ended after {len(data)} of {length} bytes"
        raise OSError(msg)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return data


def _read_file(path: Path) -> bytes:
    data = path.read_bytes()
    # a mounted secret cannot be removed
    with contextlib.suppress(OSError):
        path.unlink()
    return data
