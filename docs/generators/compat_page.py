"""The page of the documentation that says for each name how it compares; run it to write it anew.

python docs/generators/compat_page.py > docs/reference/compatibility.md
"""

import platform
import sys
from collections.abc import Iterator
from itertools import groupby

from compat_table import TABLE, deviation
from compat_walk import Name, compare, names

#: the Python whose names the page has
PYTHON = (3, 11)

_HEAD = """\
# Compatibility

<!-- written by docs/generators/compat_page.py -->

This page lists every public name of Python {python}'s `multiprocessing` and its modules. A test compares each of them with
Fiber's: the name, the members of each class, and every signature. Names under **same** do what the standard library's do, also
between machines. **Better** names do that and more. For **different** names the table says what differs and why.

Exceptions (`TimeoutError`, `ProcessError`, `queue.Full` and so on) are the standard library's own classes, and contexts and
process objects are subclasses of its classes. Objects that are sent between processes are always Fiber's.
"""

_ABSENT_FOR = "absent: "
_ABSENT = """\

## Modules that Fiber does not have

| module | why |
|---|---|
| `heap`, `popen_*`, `resource_sharer`, `resource_tracker`, `forkserver`, `spawn` | internal to the standard library |
"""


def is_for_this_python() -> bool:
    """True where this Python is the one whose names the page has."""
    return sys.version_info[:2] == PYTHON and platform.system() == "Linux"


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD.format(python=".".join(map(str, PYTHON))), *_sections(), _ABSENT])


def _sections() -> Iterator[str]:
    for module, found in groupby(names(), key=lambda name: name.module):
        yield _section(module, list(found))


def _section(module: str, found: list[Name]) -> str:
    title = f"`multiprocessing.{module}`" if module else "`multiprocessing`"
    lines = [f"## {title}", ""]
    rows, same = [], []
    absent: dict[str, list[str]] = {}
    for name in found:
        if name.owner and _covered(name):
            continue
        listed = TABLE.get(name.key)
        if listed is not None and listed.note.startswith(_ABSENT_FOR):
            absent.setdefault(listed.note[len(_ABSENT_FOR) :], []).append(f"`{name.path}`")
        elif listed is not None:
            rows.append(f"| `{name.path}` | {listed.verdict} | {listed.note} |")
        elif not name.owner:
            same.append(f"`{name.path}`")
    if same:
        lines += [f"Same: {', '.join(same)}.", ""]
    if rows:
        lines += ["| name | is | what and why |", "|---|---|---|", *rows, ""]
    for why, paths in absent.items():
        lines += [f"Absent ({why}): {', '.join(paths)}.", ""]
    return "\n".join(lines)


def _covered(name: Name) -> bool:
    """True for a member that is the same, or of which its class's row tells."""
    if name.key in TABLE:
        return False
    return compare(name).what == "same" or deviation(name.key) is not None


if __name__ == "__main__":
    sys.stdout.write(page())
