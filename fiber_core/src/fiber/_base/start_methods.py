"""Names of start methods: which ones there are, and which one the program has chosen.

All of them mean Fiber's own start. What is chosen is remembered, and told to children, because
libraries ask for it.
"""

from __future__ import annotations

import multiprocessing

__all__ = ["DEFAULT", "choose", "chosen", "names"]

#: what a program has that chose none: a child begins as with the stdlib's method of that name
DEFAULT = "spawn"

_chosen: str | None = None


def names() -> list[str]:
    """Every name that the stdlib knows on this platform, the default first."""
    known = multiprocessing.get_all_start_methods()
    return [DEFAULT, *(name for name in known if name != DEFAULT)]


def chosen() -> str | None:
    """What the program, or the one that started this process, has chosen; None for nothing."""
    return _chosen


def choose(name: str | None) -> None:
    """Remember a choice; None to forget it."""
    global _chosen  # noqa: PLW0603 - a fact about the process
    _chosen = name
