"""A descriptor that is readable while something is there."""

from __future__ import annotations

import os
import sys


class Bell:
    """Level-triggered; not thread-safe."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self.fd = self._write = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.fd, self._write = os.pipe()
            os.set_blocking(self.fd, False)
        self._rung = False

    def set(self, ring: bool) -> None:
        """Make it readable, or not."""
        if ring == self._rung or self.fd < 0:
            return
        self._rung = ring
        if ring:
            # an eventfd takes eight bytes, and a pipe does not mind them
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
