"""A file descriptor that is readable while there are items, for ``select`` and ``wait``."""

from __future__ import annotations

import os
import sys


class ReadyFd:
    """An eventfd on Linux, else a pipe. Level-triggered; not thread-safe."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self.fd = self._write = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.fd, self._write = os.pipe()
            os.set_blocking(self.fd, False)
        #: True while it is readable
        self.is_ready = False

    def set(self, ready: bool) -> None:
        """Make it readable, or not."""
        if ready == self.is_ready or self.fd < 0:
            return
        self.is_ready = ready
        if ready:
            # the size of a write to an eventfd; any size will do for a pipe
            os.write(self._write, (1).to_bytes(8, sys.byteorder))
        else:
            os.read(self.fd, 8)

    def close(self) -> None:
        """Release the descriptor; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            if self._write != self.fd:
                os.close(self._write)
            self.fd = self._write = -1
