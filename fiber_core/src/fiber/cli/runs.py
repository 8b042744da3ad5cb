"""Runs of this user on this host, as commands that look into them find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from fiber.exceptions import FiberError

__all__ = ["LocalRun", "detached_runs", "find_runs"]


@attrs.frozen
class LocalRun:
    """A run whose folder is on this host, and whose program is not known to be dead."""

    #: eight hexadecimal digits
    id: str
    #: its folder
    folder: Path
    #: what its ``run.json`` says
    description: dict[str, Any]


def detached_runs() -> list[LocalRun]:
    """Return the runs that a command began here, and whose jobs go on without it."""
    from fiber._agent import rundir

    return [
        LocalRun(folder.name, folder, description)
        for folder, description in rundir.runs()
        if description.get("detached")
    ]


def find_runs(word: str = "") -> list[LocalRun]:
    """Return the runs whose id begins with a word, oldest first.

    Raises:
        FiberError: there is none, where a word was given.
    """
    from fiber._agent import rundir
    from fiber.backend_parts.liveness import Liveness, liveness_of

    found = [
        LocalRun(folder.name, folder, description)
        for folder, description in rundir.runs()
        if folder.name.startswith(word) and liveness_of(folder) is not Liveness.DEAD
    ]
    if word and not found:
        msg = f"no run of yours on this host is {word!r}; 'fiber top --once' lists those there are"
        raise FiberError(msg)
    return found
