"""What has changed since the last commit at which everything passed, and whom that concerns."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["GREEN", "Changes"]

#: holds the commit at which ``.ci/run --all`` passed last; whoever saw it pass commits it
GREEN = Path(".ci", "green")


class Changes:
    """Files that differ from a commit, in later commits and in the working tree.

    Args:
        root: the checkout.
        base: the commit; by default that of the variable ``CI_BASE``, else that of the file
            ``.ci/green``.
    """

    def __init__(self, root: Path, base: str | None = None) -> None:
        self._root = root
        self.base = base or os.environ.get("CI_BASE") or _read(root / GREEN)
        #: paths below the root; None where the commit is unknown, so that everything may differ
        self.paths: frozenset[str] | None = None
        if self.base and self._git("merge-base", "--is-ancestor", self.base, "HEAD") is not None:
            later = self._git("diff", "--name-only", "--no-renames", "-z", self.base) or ""
            new = self._git("ls-files", "--others", "--exclude-standard", "-z") or ""
            self.paths = frozenset(f"{later}{new}".split("\0")) - {"", str(GREEN)}

    @functools.cached_property
    def head(self) -> str:
        """The commit of the checkout, in short; without git nothing."""
        return (self._git("rev-parse", "--short", "HEAD") or "").strip()

    def touch(self, beginnings: Iterable[str]) -> bool:
        """True where a path begins with one of these; always where the base is unknown."""
        if self.paths is None:
            return True
        return any(path.startswith(tuple(beginnings)) for path in self.paths)

    def __str__(self) -> str:
        if self.paths is None:
            known = f"{self.base} is no commit that this one follows" if self.base else "no base"
            return f"{known}: everything counts as changed"
        return f"{len(self.paths)} files differ from {self.base}"

    def _git(self, *words: str) -> str | None:
        command: Sequence[str] = ("git", "-C", str(self._root), *words)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout if done.returncode == 0 else None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
