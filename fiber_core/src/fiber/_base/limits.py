"""Limits of the system that an error tells of by its number alone: which one it is, and how it is looked at."""

from __future__ import annotations

import errno

__all__ = ["explained"]

_HINTS = {
    errno.EMFILE: "see `ulimit -n`",
    errno.ENFILE: "the system has as many open files as it allows",
    errno.EAGAIN: "there may be no more processes and threads; see `ulimit -u`, and pids.max of the control group",
    errno.EFBIG: "a file, or shared memory, may be no larger; see `ulimit -f`",
}


def explained(error: OSError) -> str:
    """Text of an error, with the limit that was met, if it is one."""
    text = error.strerror or str(error)
    hint = _HINTS.get(error.errno or 0)
    return f"{text}; {hint}" if hint else text
