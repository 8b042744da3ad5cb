"""How many CPUs and how much memory this process may really use: affinity and control groups."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_count", "cpu_quota", "memory_total"]

_CGROUPS = Path("/sys/fs/cgroup")
_MB = 1 << 20


def cpu_count() -> int:
    """CPUs by affinity and quota, at least one."""
    if sys.platform == "linux":
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    quota = cpu_quota()
    # a quota of 1.5 keeps two processes busy most of the time, as a scheduler sees it
    return available if quota is None else max(1, min(available, math.ceil(quota)))


def cpu_quota() -> float | None:
    """CPUs' worth of time that control groups leave to this process; None: no limit."""
    quotas: list[float] = []
    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            allowed = int((folder / "cpu.cfs_quota_us").read_text())
            if allowed > 0:
                quotas.append(allowed / int((folder / "cpu.cfs_period_us").read_text()))
    return min(quotas, default=None)


def memory_total() -> int:
    """Memory in MB that processes here may have in all, by the machine and by control groups."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            # "max" is no number, and no limit
            with contextlib.suppress(OSError, ValueError):
                sizes.append(int((folder / name).read_text()))
    return min(sizes) // _MB


def _folders(controller: str) -> Iterator[Path]:
    """This process's control group and those above it, in both versions of the hierarchy."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        roots = (
            (_CGROUPS / controller, _CGROUPS / names)
            if names
            else (
                _CGROUPS,
                _CGROUPS / "unified",
            )
        )
        for root in roots:
            folder = root / path.lstrip("/")
            while folder != root.parent:
                # inside a container the path can be the host's, which does not exist here
                if folder.is_dir():
                    yield folder
                if folder == root:
                    break
                folder = folder.parent
