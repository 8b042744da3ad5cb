"""CPUs and memory that this process may use: affinity, and Linux control groups v1 and v2.

https://docs.kernel.org/admin-guide/cgroup-v2.html, and .../cgroup-v1/ for the first version.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fiber._base import values

__all__ = ["Group", "cpu_count", "cpu_quota", "find_groups", "memory_total", "own_groups"]


@values.frozen
class Group:
    """A control group as a folder."""

    #: 1 or 2
    version: int
    #: where its hierarchy is mounted
    mount: Path
    #: the group itself, the mount or below it
    folder: Path

    def upwards(self) -> Iterator[Path]:
        """This group's folder and those above it, up to the mount."""
        folder = self.folder
        while folder != self.mount:
            yield folder
            folder = folder.parent
        yield self.mount


def own_groups(controller: str) -> list[Group]:
    """Control groups of this process that may have a controller; empty on other systems."""
    try:
        groups = Path("/proc/self/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    return [g for g in find_groups(controller, groups, mounts) if g.folder.is_dir()]


def find_groups(controller: str, groups: str, mounts: str) -> list[Group]:
    """Control groups of a process, read from two files of ``/proc``.

    Args:
        controller: ``cpu`` or ``memory``.
        groups: content of ``/proc/self/cgroup``.
        mounts: content of ``/proc/self/mountinfo``.
    """
    paths: dict[int, str] = {}
    for line in groups.splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(","):
            paths[1] = path
        elif number == "0" and not names:
            paths[2] = path
    found = []
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(" ", 2), "", "", ""][:3]
        if kind == "cgroup" and controller in options.split(","):
            version = 1
        elif kind == "cgroup2":
            version = 2
        else:
            continue
        if version in paths:
            root, mount = (_unescape(field) for field in fields.split(" ")[3:5])
            found.append(Group(version, Path(mount), _below(Path(mount), root, paths[version])))
    return found


def _below(mount: Path, root: str, path: str) -> Path:
    """Folder of a group; ``path`` need not begin at the mount's own root."""
    if root == "/":
        return mount / path.lstrip("/")
    if path == root or path.startswith(root + "/"):
        return mount / path[len(root) :].lstrip("/")
    # a container that shows its own group as the root
    return mount


def _unescape(field: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), field)


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
    """Memory in MB of the machine, or less where control groups limit this process."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in own_groups("memory"):
        name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        for folder in group.upwards():
            with contextlib.suppress(OSError, ValueError):
                sizes.append(int((folder / name).read_text()))
    return min(sizes) // _MB
