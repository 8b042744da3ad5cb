"""This interpreter: its memory, its folder, its start method, and what its end must not call.

All names of multiprocessing's start methods mean Fiber's own start. The program's choice is remembered
and passed to children, because libraries ask for it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")

#: bytes of free memory that a process may keep, and on a host with much memory
LEAST_KEPT, _MOST_KEPT = 64 * 2**20, 256 * 2**20
#: parameters of mallopt(3): free bytes from which on memory is given back; bytes that are kept then, and got with each more;
#: bytes from which on it is mapped for itself
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
#: the largest value of the second one, to which the C library raises it by itself too
_LARGEST_OF_HEAP = 32 * 2**20


def working_folder() -> str | None:
    """This process's working directory; None where it was removed, or may not be entered, as after ``sudo -u``."""
    try:
        folder = os.getcwd()  # noqa: PTH109 - pathlib is imported later
    except FileNotFoundError:
        return None
    return folder if os.access(folder, os.X_OK) else None


def resident(pid: int | None = None) -> int | None:
    """Bytes of resident memory of a process, this one if omitted; None where that cannot be told."""
    if sys.platform == "linux":
        # psutil takes ten times as long, and there may be a thousand workers
        try:
            with open(f"/proc/{'self' if pid is None else pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * _PAGE
        except OSError:
            # it has ended
            return None
    else:
        import psutil

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return None


@functools.cache
def most_kept() -> int:
    """Bytes of free memory that a process keeps at most: a 64th of the machine's, or of its control groups'."""
    try:
        from fiber._base.cgroups import memory_total
    except OSError:
        # no descriptor is left to read the module; what called this is amidst a message
        return LEAST_KEPT

    return max(LEAST_KEPT, min(memory_total() * 2**20 // 64, _MOST_KEPT))


@functools.cache
def keep_free_memory() -> None:
    """Have the C library keep free memory, unless its user has said how much.

    Called by who receives objects of 128 KB and more: new pages for each take longer than to copy it.
    """
    try:
        import ctypes
    except OSError:
        # as above
        return

    said = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
    if any(map(os.environ.get, said)) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    # other C libraries have none
    mallopt = getattr(ctypes.PyDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_OF_HEAP)
        mallopt(_TRIM_THRESHOLD, most_kept())
        if _may_reserve():
            # or all is given back where more is free
            mallopt(_TOP_PAD, most_kept())


def _may_reserve() -> bool:
    """True where addresses without pages cost nothing: no limit counts them, and the kernel does not either."""
    import resource

    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    if any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits):
        return False
    try:
        with open("/proc/sys/vm/overcommit_memory", "rb") as file:
            return file.read().strip() != b"2"
    except OSError:
        return False


#: method of a program that chose none: a child begins as with the stdlib's method of that name
DEFAULT_START_METHOD = "spawn"

#: the stdlib's own: from Python 3.14 on it lists those that libraries have added, too
_STDLIB = ("fork", "spawn", "forkserver")
_chosen: str | None = None


def start_method_names() -> list[str]:
    """List the stdlib's names on this platform, the default first."""
    # the agents of jobs, which import this module, do without it
    import multiprocessing

    known = multiprocessing.get_all_start_methods()
    return [
        DEFAULT_START_METHOD,
        *(name for name in known if name != DEFAULT_START_METHOD and name in _STDLIB),
    ]


def chosen_start_method() -> str | None:
    """Name chosen by the program, or by the process that started this one; None for none."""
    return _chosen


def choose_start_method(name: str | None) -> None:
    """Set the chosen name; None to unset it."""
    global _chosen  # noqa: PLW0603 - a fact about the process
    _chosen = name


def unless_finalizing(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Decorator of a ``__del__`` that is skipped while the interpreter ends.

    By then the globals that it uses are None, and the system closes what is open.
    """
    is_finalizing = sys.is_finalizing

    @functools.wraps(method)
    def __del__(self: Any) -> None:  # noqa: N807 - what it becomes
        if not is_finalizing():
            method(self)

    return __del__
