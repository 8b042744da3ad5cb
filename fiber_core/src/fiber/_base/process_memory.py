"""Resident memory of a process of this host."""

from __future__ import annotations

import os
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int | None = None) -> int | None:
    """Bytes of resident memory of a process, this one if omitted; None where that cannot be told."""
    if sys.platform == "linux":
        # psutil takes ten times as long, and there may be a thousand workers
        try:
            with open(f"/proc/{'self' if pid is None else pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * _PAGE
        except OSError:
            # it has ended
            return None
    else:
        import psutil

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return None
