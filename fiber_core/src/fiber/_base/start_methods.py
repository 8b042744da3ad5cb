"""Names of multiprocessing's start methods: those there are, and the one that the program chose.

All of them mean Fiber's own start. The choice is remembered and passed to children, because
libraries ask for it.
"""

from __future__ import annotations

import multiprocessing

__all__ = ["DEFAULT", "choose", "chosen", "names"]

#: method of a program that chose none: a child begins as with the stdlib's method of that name
DEFAULT = "spawn"

#: the stdlib's own: from Python 3.14 on it lists those that libraries have added, too
_STDLIB = ("fork", "spawn", "forkserver")
_chosen: str | None = None


def names() -> list[str]:
    """List the stdlib's names on this platform, the default first."""
    known = multiprocessing.get_all_start_methods()
    return [DEFAULT, *(name for name in known if name != DEFAULT and name in _STDLIB)]


def chosen() -> str | None:
    """Name chosen by the program, or by the process that started this one; None for none."""
    return _chosen


def choose(name: str | None) -> None:
    """Set the chosen name; None to unset it."""
    global _chosen  # noqa: PLW0603 - a fact about the process
    _chosen = name
