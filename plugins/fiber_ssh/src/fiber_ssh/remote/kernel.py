"""What an agent has of its system besides a supervisor: a clock, ports, marked processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator

#: environment variable that every process of a job has, by which what is left of it is found
MARK = "_FIBER_SSH_JOB"

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds that also pass while this host sleeps."""
    return time.clock_gettime(_CLOCK)


def complain(words: str) -> None:
    """A line in the agent's own log."""
    with contextlib.suppress(OSError):
        os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))


def bound_port() -> tuple[int, int]:
    """A port of loopback where a job may listen, after a descriptor of its socket, which the job gets.

    Without ``SO_REUSEADDR``, by which any other user of the host could listen there before the job.
    """
    bound = socket.socket()
    bound.setblocking(True)
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    return bound.detach(), port


def kill_marked(jobs: Iterable[str]) -> None:
    """Kill all processes that carry the mark of one of these jobs."""
    for pid in _marked(jobs):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _marked(jobs: Iterable[str]) -> Iterator[int]:
    marks = {f"{MARK}={job}".encode() for job in jobs}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                found = file.read().split(b"\0")
        except OSError:
            # not ours, or gone meanwhile
            continue
        if not marks.isdisjoint(found):
            yield int(name)
