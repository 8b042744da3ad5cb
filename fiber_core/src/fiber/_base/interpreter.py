"""This interpreter: its memory, its start method, and what its end must not call.

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
