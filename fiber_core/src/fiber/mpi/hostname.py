"""A host name of its own for a thread and what it starts, where the system and its user may do that."""

from __future__ import annotations

import sys

__all__ = ["rename"]

_CLONE_NEWUTS = 0x04000000


def rename(name: str) -> bool:
    """Give this thread, and the processes that it starts from now on, a host name of their own.

    Returns:
        False where that cannot be done; nothing has changed then.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    encoded = name.encode()
    return bool(libc.unshare(_CLONE_NEWUTS) == 0 and libc.sethostname(encoded, len(encoded)) == 0)
