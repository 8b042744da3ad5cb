"""How much memory this process has, and the machine has left; Linux tells, elsewhere nobody asks."""

from __future__ import annotations

import resource
from pathlib import Path

#: kilobytes that a worker of a thousand is given before it is started: what one takes, and half
WORKER = 12_000


def resident() -> int:
    """Kilobytes of this process that are in memory."""
    return _field("/proc/self/status", "VmRSS")


def available() -> int:
    """Kilobytes that programs may still take."""
    return _field("/proc/meminfo", "MemAvailable")


def prepare_for(workers: int) -> None:
    """Let this process have a descriptor or two for each of so many workers.

    Raises:
        MemoryError: the machine has not got the memory for them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    left = available()
    if left < workers * WORKER:
        msg = (
            f"{workers} workers may take {workers * WORKER // 1000} MB, "
            f"and this machine has {left // 1000} MB left; end something, or measure fewer"
        )
        raise MemoryError(msg)


def _field(path: str, name: str) -> int:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    msg = f"{path} has no {name}"
    raise OSError(msg)
