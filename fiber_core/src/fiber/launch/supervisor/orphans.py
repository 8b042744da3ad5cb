"""Ends descendants that left their job's group and came to the supervisor as orphans."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from fiber.launch.supervisor import kernel

__all__ = ["DETACHED_TITLE", "SUPERVISOR_TITLE", "end"]

#: names of supervisors as the system shows them, at most 15 characters
SUPERVISOR_TITLE = "fiber-superv"
DETACHED_TITLE = "fiber-detached"

#: seconds for other supervisors to end their own jobs, and for killed processes to end
_PATIENCE = 3.0


def end() -> None:
    """End all children of this process, and what comes to it thereby.

    A program in a job may use Fiber itself: its supervisor is asked to end, which ends what it
    supervises. One of detached jobs is meant to live on.
    """
    deadline = time.monotonic() + _PATIENCE
    asked: set[int] = set()
    while time.monotonic() < deadline:
        children = [pid for pid in _children() if _title(pid) != DETACHED_TITLE]
        if not children:
            return
        for pid in children:
            if _title(pid) == SUPERVISOR_TITLE and pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
            elif pid not in asked:
                _signal(pid, signal.SIGKILL)
        _wait(children, deadline)
    for pid in asked:
        _signal(pid, signal.SIGKILL)


def _wait(children: list[int], deadline: float) -> None:
    watches = []
    for pid in children:
        with contextlib.suppress(OSError):
            watches.append(kernel.ProcessWatch(pid))
    poll = select.poll()
    for watch in watches:
        poll.register(watch.fileno(), select.POLLIN)
    # one that ends may leave new orphans to us, so each is a reason to look again
    poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    for watch in watches:
        watch.close()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children() -> list[int]:
    """Children of this process; empty where there is no /proc, and are no orphans for us."""
    own = os.getpid()
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    # kernels are also built without that file
    return [pid for pid in _processes() if _parent(pid) == own]


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return []


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
