"""Options that run a part of the tests: of a user's machine, or of what depends on the Python.

``--quick``: whether Fiber works on this machine. Whole files run of what users call: the tests of
the core's public modules, the backend ``local``, and what README's table of promises names; of
every other class or file without classes one test, but for those that are about the checkout.
Where files are named, or tests by ``-k``, it does nothing. ``--rest`` runs all that it leaves out.

``--other-python``: on Pythons besides the main one, tests run of what depends on the Python.

Whole files run that use themselves what of the standard library differs from Python to Python, and
every test of the others, of its cases one: another one on each Python. What is named below runs on
the main Python alone: it is one piece of code, and does not depend on the Python.

``--between``: on a Python between two that run all of that, one test of each class and file runs
in place of every test. ``--followers``: of all that only the whole files.
"""

from __future__ import annotations

import argparse
import functools
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
_ROOT = Path(__file__).parents[2]
#: beginnings of tests' names that are about what users call
OF_USERS = ("fiber_core/tests/test_", "plugins/fiber_local/tests/")
#: and those that are about this checkout, whatever machine it is on
OF_CHECKOUT = tuple(
    f"tests/{name}" for name in ("architecture/", "benchmarks/", "ci/", "docs/", "test_", "typing/")
)
#: a link to a file of tests in a table
_PROMISED = re.compile(r"^\|.*", re.MULTILINE), re.compile(r"\]\(([\w/]+\.py)\)")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fiber")
    group.addoption(
        "--quick",
        action="store_true",
        help="run what tells whether Fiber works on this machine; see tests/support/pythons.py",
    )
    group.addoption("--rest", action="store_true", help="run what --quick leaves out")
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
    group.addoption(
        "--followers",
        action="store_true",
        help="of --other-python the files that use what differs from Python to Python",
    )


def pytest_configure(config: pytest.Config) -> None:
    # workers of xdist are told the outcome
    if not hasattr(config, "workerinput"):
        all_are_meant = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        config.option.quick &= all_are_meant and not config.option.keyword


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = _chosen(config.option, items)
    if kept is not None:
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _chosen(option: argparse.Namespace, items: list[pytest.Item]) -> set[pytest.Item] | None:
    """The tests that an option has chosen; None where there is none."""
    if option.quick or option.rest:
        whole = promised()
        here = [item for item in items if not item.nodeid.startswith(OF_CHECKOUT)]
        quick = set(_one_of_each(here, lambda item: item.nodeid.startswith(whole), _group))
        return quick if option.quick else set(items) - quick
    here = [item for item in items if not item.nodeid.startswith(tuple(LEFT_OUT))]
    if option.followers:
        return {item for item in here if _follows(item.path)}
    if option.between or option.other_python:
        group = _group if option.between else _function
        return set(_one_of_each(here, lambda item: _follows(item.path), group))
    return None


def promised() -> tuple[str, ...]:
    """Beginnings of tests' names that ``--quick`` runs whole: what users call and are promised."""
    rows, links = _PROMISED
    tables = "\n".join(rows.findall((_ROOT / "README.md").read_text(encoding="utf-8")))
    return (*OF_USERS, *links.findall(tables))


def _one_of_each(
    items: Iterable[pytest.Item],
    is_whole: Callable[[pytest.Item], bool],
    group: Callable[[pytest.Item], object],
) -> Iterator[pytest.Item]:
    """All tests of some files, and of the others one of each group."""
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        if is_whole(item):
            yield item
        else:
            groups.setdefault(group(item), []).append(item)
    for members in groups.values():
        yield members[sys.version_info.minor % len(members)]


@functools.cache
def _follows(path: Path) -> bool:
    """Whether a file uses what differs from Python to Python."""
    return bool(_FOLLOWS.search(path.read_text(encoding="utf-8")))


def _function(item: pytest.Item) -> object:
    return item.parent, getattr(item, "originalname", item.name)


def _group(item: pytest.Item) -> object:
    return item.parent


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell what was left out, also where workers of xdist collected."""
    option = config.option
    if option.quick:
        terminalreporter.line("a part of the tests, for users: bootstrap.py test --all runs all")
    if not (option.between or option.other_python or option.followers):
        return
    terminalreporter.section("left to the main Python")
    for reason in dict.fromkeys(LEFT_OUT.values()):
        terminalreporter.line(f"{reason}:")
        for name, why in LEFT_OUT.items():
            if why == reason:
                terminalreporter.line(f"  {name}")
    left = "all but one case of each test"
    if option.between:
        left = "all but one test of each class and file"
    elif option.followers:
        left = "all"
    terminalreporter.line(f"in files that use none of {', '.join(FOLLOWED)}: {left}")
