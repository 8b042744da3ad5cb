"""The folder of a remote job on its host: made, removed, and swept where its supervisor could not."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from fiber.launch.pids import is_same, start_time

__all__ = ["make", "present", "remove", "sweep"]

_NAME = re.compile(r"fiber-[0-9a-f]{8}-\w+")
#: whose it is: process id and start time
_OWNER = "supervisor"


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
    except (OSError, ValueError):
        # one that is being made, or nothing of ours
        return False
