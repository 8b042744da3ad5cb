"""The folder of a remote job on its host: made, removed, and swept where its supervisor could not."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from fiber.launch.pids import is_same, start_time

__all__ = ["make", "present", "remove", "sweep"]

_NAME = re.compile(r"fiber-[0-9a-f]{8}-\w+")
#: whose it is: process id and start time
_OWNER = "supervisor"
#: seconds within which a folder that is being made has an owner, on the busiest of hosts
_MAKING = 600.0


def make(run_id: str) -> str:
    """A private folder for the job of this process, which is its supervisor."""
    folder = tempfile.mkdtemp(prefix=f"fiber-{run_id}-")
    pid = os.getpid()
    Path(folder, _OWNER).write_text(f"{pid} {start_time(pid)}")
    return folder


def present() -> str:
    """The working directory; the root where it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - a word, and no object
    except FileNotFoundError:
        return "/"


def remove(folder: str) -> None:
    """Remove it."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[str]:
    """Remove folders of this user whose supervisors are no more; returns them."""
    swept = []
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return []
    for entry in entries:
        if _NAME.fullmatch(entry.name) and _is_stale(entry):
            remove(entry.path)
            swept.append(entry.path)
    return swept


def _is_stale(entry: os.DirEntry[str]) -> bool:
    try:
        if entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        pid, started = Path(entry.path, _OWNER).read_text().split()
        return not is_same(int(pid), float(started))
    except FileNotFoundError:
        # one that is being made, or nothing of ours; or what a process of the job, which outlived its
        # supervisor for a moment, kept from being removed
        return _is_forgotten(entry)
    except (OSError, ValueError):
        return False


def _is_forgotten(entry: os.DirEntry[str]) -> bool:
    try:
        if time.time() - entry.stat(follow_symlinks=False).st_mtime < _MAKING:
            return False
        return not os.listdir(entry.path)  # noqa: PTH208 - a count, and no objects
    except OSError:
        return False
