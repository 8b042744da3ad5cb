"""Named shared memory of a run: a record of each block in the run's folder, and their removal.

A block of ``fiber.shared_memory`` has a name in the system and outlives all processes that map it.
The standard library has a process beside each program that unlinks what is left, and that children
share with their parent. Here a file in the run's folder records each block, and whoever removes the
folder unlinks the blocks first: the master at its end, its supervisor if it was killed, or the next
sweep.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

__all__ = ["create", "forget", "open_block", "unlink", "unlink_all"]

_FOLDER = "shared_memory"


def open_block(name: str, *, create: bool = False) -> int:
    """Open a block: its descriptor.

    Raises:
        OSError: there is none; or, to create it, there is one.
    """
    flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
    descriptor: int = _system().shm_open(f"/{name}", flags, mode=0o600)
    return descriptor


def unlink(name: str) -> None:
    """Unlink a block: no process can open it any more, mappings stay.

    Raises:
        OSError: there is none.
    """
    _system().shm_unlink(f"/{name}")


def create(run: Path, name: str) -> int:
    """Create a block that goes with its run: its descriptor.

    Raises:
        OSError: there is one of that name.
    """
    folder = run / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # two processes may try the same name: the one that fails must not remove the other's record
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = folder / quote(name, safe="")
        is_new = not record.exists()
        # before the block, so that no moment of a process's end leaves it behind
        record.touch(mode=0o600)
        try:
            return open_block(name, create=True)
        except BaseException:
            if is_new:
                record.unlink(missing_ok=True)
            raise
    finally:
        os.close(lock)


def forget(run: Path, name: str) -> None:
    """Remove the record of a block that was unlinked; idempotent."""
    (run / _FOLDER / quote(name, safe="")).unlink(missing_ok=True)


def unlink_all(run: str | os.PathLike[str]) -> None:
    """Unlink all blocks that have a record; processes that map them keep their mappings."""
    with contextlib.suppress(FileNotFoundError):
        for record in Path(run, _FOLDER).iterdir():
            with contextlib.suppress(OSError):
                unlink(unquote(record.name))


def _system() -> Any:
    # the stdlib's, in C; imported by those who have blocks only
    import _posixshmem  # type: ignore[import-not-found] # the stubs do not have it

    return _posixshmem
