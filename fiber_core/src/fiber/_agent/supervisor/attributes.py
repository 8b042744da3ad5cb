"""Attributes that a program hands down to the programs that it starts: umask, priority, CPUs, limits.

A process that its supervisor forks has the supervisor's, which are those of the program some time ago. So a
submission brings them, as it brings environment and working directory.
"""

from __future__ import annotations

import contextlib
import os
import resource

from fiber._base import values

__all__ = ["Attributes"]

# one of them has two names
_LIMITS: tuple[int, ...] = tuple(
    {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
)


@values.frozen
class Attributes:
    """Attributes of a process, of its main thread where threads have some of their own."""

    #: bits that new files do not get; None where that cannot be read
    umask: int | None
    #: from -20, the highest priority, to 19
    nice: int
    #: the CPUs it may use; none where the system has no such thing
    cpus: tuple[int, ...]
    #: number, soft and hard value of each limit
    limits: tuple[tuple[int, int, int], ...]

    @classmethod
    def mine(cls) -> Attributes:
        """Those of this process."""
        pid = os.getpid()
        return cls(
            umask=_umask(),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
            cpus=_cpus(pid),
            limits=tuple((which, *resource.getrlimit(which)) for which in _LIMITS),
        )

    def adopt(self) -> None:
        """Make them this process's; one that the system does not allow it stays as it is."""
        if self.umask is not None:
            os.umask(self.umask)
        if os.getpriority(os.PRIO_PROCESS, 0) != self.nice:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        if hasattr(os, "sched_setaffinity") and self.cpus != _cpus(0):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self.cpus)
        for which, soft, hard in self.limits:
            if resource.getrlimit(which) != (soft, hard):
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(which, (soft, hard))


def _cpus(pid: int) -> tuple[int, ...]:
    return tuple(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else ()


def _umask() -> int | None:
    # to ask by os.umask() is to change it for the other threads meanwhile
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    _, found, rest = status.partition(b"\nUmask:")
    return int(rest.split(None, 1)[0], 8) if found else None
