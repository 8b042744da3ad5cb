"""A host name of its own for a thread and what it starts, where the system and its user may do that."""

from __future__ import annotations

import sys

__all__ = ["rename"]

_CLONE_NEWUTS = 0x04000000


if sys.platform == "linux":

    def rename(name: str) -> bool:
        """Give this thread, and the processes that it starts from now on, a host name of their own.

        Returns:
            False where that cannot be done; nothing has changed then.
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        encoded = name.encode()
        if libc.unshare(_CLONE_NEWUTS) != 0:
            return False
        return bool(libc.sethostname(encoded, len(encoded)) == 0)

else:

    def rename(name: str) -> bool:  # noqa: ARG001 - as above
        """Give this thread a host name of its own: not here."""
        return False
