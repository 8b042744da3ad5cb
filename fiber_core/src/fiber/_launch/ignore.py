"""Which files of a folder are ignored, in the words of ``.gitignore``; pure but for reading those."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

__all__ = ["Ignore", "IgnoredBy", "compile_pattern", "parse"]

#: files with patterns; in a folder that has the first, the second means nothing
FILES = (".fiberignore", ".gitignore")
#: what nobody wants sent, whatever files say
_NEVER = ("__pycache__/", ".git/", ".hg/", ".svn/", ".venv/", ".tox/", "node_modules/")


class Pattern(NamedTuple):
    """One line of a file."""

    #: of a path relative to the file's folder
    matches: re.Pattern[str]
    #: True where it takes back what lines before it said
    negated: bool
    #: True where it means folders alone
    folders_only: bool
    #: as it was written
    text: str


class IgnoredBy(NamedTuple):
    """Why a file is ignored."""

    #: the file that says so, or nothing where it is Fiber itself
    file: str
    #: the line
    pattern: str


def compile_pattern(line: str) -> Pattern | None:
    """Read one line; None where it says nothing."""
    text = line.rstrip("\n").rstrip("\r")
    while text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1]
    if not text or text.startswith("#"):
        return None
    words = text
    negated = words.startswith("!")
    words = words[1:] if negated else words
    folders_only = words.endswith("/")
    words = words.rstrip("/") if folders_only else words
    if not words:
        return None
    # a slash at the start or in the middle ties it to the file's own folder
    anchored = "/" in words
    body = _expression(words.lstrip("/"))
    prefix = "" if anchored else "(?:.*/)?"
    return Pattern(re.compile(f"{prefix}{body}", re.DOTALL), negated, folders_only, text)


def _expression(words: str) -> str:
    found = ""
    position = 0
    while position < len(words):
        rest = words[position:]
        if rest.startswith("**/") and (position == 0 or words[position - 1] == "/"):
            found += "(?:.*/)?"
            position += 3
        elif rest == "**" and position and words[position - 1] == "/":
            found += ".+"
            position += 2
        elif rest[0] == "*":
            found += "[^/]*"
            position += len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            found += "[^/]"
            position += 1
        elif rest[0] == "[" and (end := rest.find("]", 2)) > 0:
            inner = rest[1:end].replace("\\", "\\\\")
            found += f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]"
            position += end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            found += re.escape(rest[1])
            position += 2
        else:
            found += re.escape(rest[0])
            position += 1
    return found


def parse(text: str) -> list[Pattern]:
    """The patterns of a file; lines that cannot be read say nothing."""
    found = []
    for line in text.splitlines():
        try:
            pattern = compile_pattern(line)
        except re.error:
            continue
        if pattern is not None:
            found.append(pattern)
    return found


class Ignore:
    """What is ignored below a folder. Files are read once each.

    Args:
        root: the folder; files of patterns count in it and in each folder below.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[PurePosixPath, tuple[str, list[Pattern]]] = {}
        self._never = parse("\n".join(_NEVER))

    def why(self, path: Path, *, is_folder: bool = False) -> IgnoredBy | None:
        """Why a path below the root is ignored; None where it is not, or not below the root."""
        try:
            relative = PurePosixPath(path.relative_to(self._root).as_posix())
        except ValueError:
            return None
        parts = relative.parts
        for count in range(1, len(parts) + 1):
            # what is in a folder that is ignored is, whatever else is said
            found = self._judge(
                PurePosixPath(*parts[:count]), is_folder=is_folder or count < len(parts)
            )
            if found is not None:
                return found
        return None

    def _judge(self, path: PurePosixPath, *, is_folder: bool) -> IgnoredBy | None:
        found = _last(self._never, str(path), is_folder=is_folder)
        if found is not None:
            return IgnoredBy("", found.text)
        # the nearest file that says anything counts
        for folder in path.parents:
            file, patterns = self._patterns(folder)
            said = _last(patterns, str(path.relative_to(folder)), is_folder=is_folder)
            if said is not None:
                return None if said.negated else IgnoredBy(file, said.text)
        return None

    def _patterns(self, folder: PurePosixPath) -> tuple[str, list[Pattern]]:
        known = self._files.get(folder)
        if known is None:
            known = self._files[folder] = self._read(self._root / folder)
        return known

    def _read(self, folder: Path) -> tuple[str, list[Pattern]]:
        for name in FILES:
            try:
                text = (folder / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            return str(folder / name), parse(text)
        return "", []


def _last(patterns: list[Pattern], path: str, *, is_folder: bool) -> Pattern | None:
    for pattern in reversed(patterns):
        if (is_folder or not pattern.folders_only) and pattern.matches.fullmatch(path):
            return pattern
    return None
