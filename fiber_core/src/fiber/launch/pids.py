"""Whether a process id still means the process it was written down for."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["is_same", "start_time"]


if sys.platform == "linux":

    def start_time(pid: int) -> float | None:
        """When a process was started, in units of the system's own.

        Returns:
            None where there is no such process; a zombie counts as none.
        """
        try:
            text = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return None
        # the name, in parentheses, can hold anything
        fields = text.rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else float(fields[19])

else:

    def start_time(pid: int) -> float | None:
        """When a process was started, in units of the system's own.

        Returns:
            None where there is no such process; a zombie counts as none.
        """
        import psutil

        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return float(process.create_time())
        except psutil.Error:
            return None


def is_same(pid: int, started: float | None) -> bool:
    """True where ``pid`` is a living process and was started then."""
    if started is None or pid <= 0:
        return False
    return start_time(pid) == started
