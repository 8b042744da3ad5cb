"""Descendants that left their job's process group: found and ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from fiber._agent.supervisor import kernel

#: names of supervisors as the system shows them, at most 15 characters
SUPERVISOR_TITLE = "fiber-superv"
DETACHED_TITLE = "fiber-detached"


def stray_descendants(group: int, candidates: Iterable[int]) -> list[int]:
    """Descendants of a process group's members, save its leader's, that have groups of their own.

    A launcher that a job runs, ``torchrun`` for one, gives its workers groups of their own and ends
    them itself. Where the group is killed it cannot, and they would go on without it. What the
    leader itself detached it may have meant to live on.

    Args:
        group: the id of the group.
        candidates: processes that may be members: children of the leader, or where that has
            ended, orphans that came to this process.

    Returns:
        Their process ids, none of them of a supervisor within the job, which ends by itself;
        nothing where the system does not list children.
    """
    found: list[int] = []
    members = [pid for pid in candidates if pid != group and _group(pid) == group]
    while members:
        for pid in children(members.pop()):
            if _group(pid) == group:
                members.append(pid)
            elif _title(pid) not in {SUPERVISOR_TITLE, DETACHED_TITLE}:
                found.append(pid)
                # whatever is below it, in which group ever
                members.append(pid)
    return found


def children(pid: int) -> list[int]:
    """Children of a process, whichever of its threads started them."""
    found: list[int] = []
    threads = []
    # without pathlib: each page that a supervisor's objects and code are on is copied after each fork
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    for thread in threads:
        # a thread that ends meanwhile takes nothing along: its process has its children then
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/task/{thread}/children", "rb", 0) as file,
        ):
            found += map(int, file.read().split())
    return found


def end_descendants(timeout: float) -> None:
    """End all children of this process, and the orphans that come to it thereby.

    A program in a job may use Fiber itself: its supervisor is asked to end, which ends what it
    supervises. One of detached jobs is meant to live on.

    Args:
        timeout: seconds for other supervisors to end their own jobs, and for killed processes to
            end; then other supervisors are killed, and this returns.
    """
    deadline = time.monotonic() + timeout
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


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _children() -> list[int]:
    """Children of this process; empty where there is no /proc, and are no orphans for us."""
    own = os.getpid()
    if Path(f"/proc/{own}/task/{own}/children").exists():
        return children(own)
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
