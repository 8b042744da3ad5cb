"""``--other-python``: on Pythons besides the main one, tests run of what depends on the Python.

Whole files run that use themselves what of the standard library differs from Python to Python, and
every test of the others, of its cases one: another one on each Python. What is named below runs on
the main Python alone: it is one piece of code, and does not depend on the Python.

``--between``: on a Python between two that run all of that, one test of each class and file runs
in place of every test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

__all__ = ["LEFT_OUT"]

_PURE = "a state machine without I/O, for which hypothesis makes up orders of events"
_KIT = "the kit judges backends, and is judged itself, by the same code everywhere"
#: beginnings of tests' names, and why they run on the main Python alone
LEFT_OUT: Mapping[str, str] = {
    "fiber_core/tests/cli/test_plugin.py": _KIT,
    "fiber_core/tests/testing/": _KIT,
    "plugins/fiber_local/tests/test_conformance.py::TestLocalBackend": _KIT,
    "fiber_core/tests/_agent/test_lease.py": _PURE,
    "fiber_core/tests/_workers/test_state.py": _PURE,
    "fiber_core/tests/_objects/queue/test_channel.py": _PURE,
    "fiber_core/tests/_objects/queue/test_state_machine.py": _PURE,
    "fiber_core/tests/_tasks/pending/": _PURE,
    "fiber_core/tests/_agent/resources/test_allocator.py": _PURE,
    "fiber_core/tests/_wire/test_frames.py": _PURE,
}
#: what Fiber does as the standard library does it, and so differently on each Python
FOLLOWED = ("asyncio", "concurrent", "copyreg", "inspect", "multiprocessing", "pickle")
_FOLLOWS = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(FOLLOWED)})\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fiber")
    group.addoption(
        "--other-python",
        action="store_true",
        help="run what depends on the Python; see tests/support/pythons.py",
    )
    group.addoption(
        "--between",
        action="store_true",
        help="as --other-python, on a Python between two that do so: still less",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    between = config.getoption("--between")
    if not (between or config.getoption("--other-python")):
        return
    here = [item for item in items if not item.nodeid.startswith(tuple(LEFT_OUT))]
    kept = set(_one_of_each(here, _group if between else _function))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _one_of_each(
    items: Iterable[pytest.Item], group: Callable[[pytest.Item], object]
) -> Iterator[pytest.Item]:
    """All of files that follow the standard library, and of other tests one of each group."""
    follows: dict[Path, bool] = {}
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.path not in follows:
            follows[item.path] = bool(_FOLLOWS.search(item.path.read_text(encoding="utf-8")))
        if follows[item.path]:
            yield item
        else:
            groups.setdefault(group(item), []).append(item)
    for members in groups.values():
        yield members[sys.version_info.minor % len(members)]


def _function(item: pytest.Item) -> object:
    return item.parent, getattr(item, "originalname", item.name)


def _group(item: pytest.Item) -> object:
    return item.parent


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell what was left out, also where workers of xdist collected."""
    between = config.getoption("--between")
    if not (between or config.getoption("--other-python")):
        return
    terminalreporter.section("left to the main Python")
    for reason in dict.fromkeys(LEFT_OUT.values()):
        terminalreporter.line(f"{reason}:")
        for name, why in LEFT_OUT.items():
            if why == reason:
                terminalreporter.line(f"  {name}")
    one = "test of each class and file" if between else "case of each test"
    terminalreporter.line(f"in files that use none of {', '.join(FOLLOWED)}: all but one {one}")
