"""Where this process is in the control groups of Linux, in both versions of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fiber._base import values

__all__ = ["Group", "find_groups", "own_groups"]


@values.frozen
class Group:
    """A control group as a folder."""

    #: 1 or 2
    version: int
    #: where its hierarchy is mounted
    mount: Path
    #: the group itself, the mount or below it
    folder: Path

    def upwards(self) -> Iterator[Path]:
        """This group's folder and those above it, up to the mount."""
        folder = self.folder
        while folder != self.mount:
            yield folder
            folder = folder.parent
        yield self.mount


def own_groups(controller: str) -> list[Group]:
    """The groups of this process that may have a controller; none on other systems."""
    try:
        groups = Path("/proc/self/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    return [g for g in find_groups(controller, groups, mounts) if g.folder.is_dir()]


def find_groups(controller: str, groups: str, mounts: str) -> list[Group]:
    """The groups that two files of ``/proc`` tell of.

    Args:
        controller: ``cpu`` or ``memory``.
        groups: what ``/proc/self/cgroup`` says.
        mounts: what ``/proc/self/mountinfo`` says.
    """
    paths: dict[int, str] = {}
    for line in groups.splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(","):
            paths[1] = path
        elif number == "0" and not names:
            paths[2] = path
    found = []
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(" ", 2), "", "", ""][:3]
        if kind == "cgroup" and controller in options.split(","):
            version = 1
        elif kind == "cgroup2":
            version = 2
        else:
            continue
        if version in paths:
            root, mount = (_unescape(field) for field in fields.split(" ")[3:5])
            found.append(Group(version, Path(mount), _below(Path(mount), root, paths[version])))
    return found


def _below(mount: Path, root: str, path: str) -> Path:
    """The folder of a group whose path is told from elsewhere than its mount's root."""
    if root == "/":
        return mount / path.lstrip("/")
    if path == root or path.startswith(root + "/"):
        return mount / path[len(root) :].lstrip("/")
    # a container that shows us our own group as the root
    return mount


def _unescape(field: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), field)
