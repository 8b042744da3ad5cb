"""How much memory this process has, and the machine has left; Linux tells, elsewhere nobody asks."""

from __future__ import annotations

import resource
from pathlib import Path

#: kilobytes that a worker may take, by what workers took
WORKER = {"fiber": 10_000, "multiprocessing": 5_000}


def resident() -> int:
    """Kilobytes of this process that are in memory."""
    return _field("/proc/self/status", "VmRSS")


def available() -> int:
    """Kilobytes that programs may still take."""
    return _field("/proc/meminfo", "MemAvailable")


def prepare_for(contender: str, workers: int) -> None:
    """Let this process have some descriptors for each of so many workers.

    Raises:
        MemoryError: the machine has not got the memory for them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    left, needed = available(), workers * WORKER[contender]
    if left < needed:
        msg = (
            f"{workers} workers of {contender} may take {needed // 1000} MB, and this machine has "
            f"{left // 1000} MB left; end something, or measure fewer"
        )
        raise MemoryError(msg)


def _field(path: str, name: str) -> int:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    msg = f"{path} has no {name}"
    raise OSError(msg)
