"""Private folder of a remote job on its host: made, removed, swept after a killed supervisor.

Apart from ``server``, so that the sweep can be tested without a supervisor.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Claim, liveness_of, remove_claimed

__all__ = ["JobFolder", "sweep", "working_directory"]

_NAME = re.compile(r"fiber-[0-9a-f]{8}-\w+")


class JobFolder:
    """A private folder for the job of this process, which is its supervisor.

    Args:
        run_id: the job's run.
    """

    def __init__(self, run_id: str) -> None:
        #: path of the folder
        self.path = tempfile.mkdtemp(prefix=f"fiber-{run_id}-")
        self._claim = Claim(self.path)

    @property
    def descriptor(self) -> int:
        """Descriptor that holds the claim; processes of the job close theirs."""
        return self._claim.descriptor

    def remove(self) -> None:
        """Remove the folder and give up the claim."""
        remove_claimed(self.path)
        self._claim.release()


def working_directory() -> str:
    """Current working directory; ``/`` where it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - a word, and no object
    except FileNotFoundError:
        return "/"


def sweep() -> list[str]:
    """Remove folders of this user whose supervisors are proven to be dead; returns their paths."""
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return []
    ours = [entry.path for entry in entries if _NAME.fullmatch(entry.name) and _is_ours(entry)]
    return liveness.sweep(ours, liveness_of, _removed)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return (
            entry.is_dir(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        )
    except OSError:
        return False


def _removed(folder: str) -> bool:
    remove_claimed(folder)
    return not Path(folder).exists()
