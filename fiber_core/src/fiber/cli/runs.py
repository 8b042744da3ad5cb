"""Runs of this user on this host, as commands that look into them find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from fiber.exceptions import BackendError, FiberError

__all__ = ["LocalRun", "detached_runs", "find_runs", "is_meant", "run_meant"]


@attrs.frozen
class LocalRun:
    """A run whose folder is on this host, and whose program is not known to be dead."""

    #: eight hexadecimal digits
    id: str
    #: its folder
    folder: Path
    #: what its ``run.json`` says
    description: dict[str, Any]

    @property
    def outer(self) -> str:
        """The run whose job its program is in; "" where that is none."""
        return str(self.description.get("outer", ""))


def is_meant(word: str, run: str, outer: str) -> bool:
    """True where the id of a run, or of the run whose job it is in, begins with a word."""
    return run.startswith(word) or bool(outer and outer.startswith(word))


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


def run_meant(word: str, backend: str | None) -> str:
    """Return the word by which a run is found that somebody means: the run of a job that the word names, or itself.

    Args:
        word: an id, or the beginning of one; or one of a job, or a job's name.
        backend: name of the job's backend; None for the one that is used by default.

    Raises:
        FiberError: several jobs may be meant.
    """
    from fiber._agent import rundir
    from fiber.cli.session import Session
    from fiber.cli.show import find_job

    if not word or any(folder.name.startswith(word) for folder, _ in rundir.runs()):
        return word
    try:
        with Session.load(backend).open_backend() as loaded:
            return find_job(loaded.list(), word).run_id
    except BackendError:
        # then it is told that there is no such run
        return word
