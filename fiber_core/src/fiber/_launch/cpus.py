"""How many CPUs and how much memory this process may really use: affinity and control groups."""

from __future__ import annotations

import contextlib
import math
import os
import sys

from fiber._agent.cgroups import own_groups

__all__ = ["cpu_count", "cpu_quota", "memory_total"]

_MB = 1 << 20


def cpu_count() -> int:
    """CPUs by affinity and quota, at least one."""
    if sys.platform == "linux":
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    quota = cpu_quota()
    # a quota of 1.5 keeps two processes busy most of the time
    return available if quota is None else max(1, min(available, math.ceil(quota)))


def cpu_quota() -> float | None:
    """CPUs' worth of time that control groups leave to this process; None: no limit."""
    quotas: list[float] = []
    for group in own_groups("cpu"):
        for folder in group.upwards():
            # "max" is no number, and no limit
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                if group.version == 2:
                    quota, period = map(int, (folder / "cpu.max").read_text().split())
                else:
                    quota = int((folder / "cpu.cfs_quota_us").read_text())
                    period = int((folder / "cpu.cfs_period_us").read_text())
                if quota > 0:
                    quotas.append(quota / period)
    return min(quotas, default=None)


def memory_total() -> int:
    """Memory in MB that processes here may have in all, by the machine and by control groups."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in own_groups("memory"):
        name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        for folder in group.upwards():
            with contextlib.suppress(OSError, ValueError):
                sizes.append(int((folder / name).read_text()))
    return min(sizes) // _MB
