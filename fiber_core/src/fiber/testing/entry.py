"""Program that calls a job's ``entry`` in a fresh Python; the fake backend runs it instead of a fork."""

from __future__ import annotations

import os
import sys

from fiber._base.entry_points import load_object

__all__ = ["main"]


def main(entry: str, index: int) -> int:
    """Call ``module:function`` with the private bytes and the index; return its exit code."""
    private = b""
    fd = os.environ.pop("FIBER_BOOTSTRAP", "").removeprefix("fd:")
    if fd:
        with os.fdopen(int(fd), "rb") as stream:
            private = stream.read()
    code: int = load_object(entry)(private, index)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
