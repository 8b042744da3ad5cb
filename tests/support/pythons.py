"""``--part NAME`` runs a part of the tests: of a user's machine, or of what depends on the Python.

``quick``: whether Fiber works on this machine. Whole files run of what users call: the tests of the
core's public modules, the backend ``local``, and what README's table of promises names; of every
other class or file without classes one test, but for those that are about the checkout. Where files
are named, or tests by ``-k``, it does nothing. ``rest``: all that it leaves out.

The others are for Pythons besides the main one. Files run whole that use themselves what of the
standard library differs from Python to Python; of the other files ``python`` runs every test, of its
cases one, another one on each Python; ``between``, on a Python between two of these, one test of
each class and file. ``followers`` runs none of these, and of the files that follow every test with one
of its cases; the programs of tests/compat are no cases, but each of them another thing that the
standard library does. What is named below runs on the main Python alone: it is one piece of code, and
does not depend on the Python.

``--half SEED`` runs of whatever else is chosen, by ``-k`` and ``-m`` too, half the tests, another half
by each seed, and all those about the checkout.
"""

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

_PURE = "a state machine without I/O, for which hypothesis makes up orders of events"
_TRANSPORT = "what a program sees of the Python it sees by either transport"
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
    "tests/compat/test_programs.py::test_with_another_import_a_program_prints_the_same[tls-": _TRANSPORT,
}
#: beginnings of tests' names whose cases differ in what they show of the standard library
COMPARED = ("tests/compat/",)
#: what Fiber does as the standard library does it, and so differently on each Python
FOLLOWED = ("asyncio", "concurrent", "copyreg", "inspect", "multiprocessing", "pickle")
_FOLLOWS = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(FOLLOWED)})\b", re.MULTILINE)
_ROOT = Path(__file__).parents[2]
#: beginnings of tests' names that are about what users call
OF_USERS = ("fiber_core/tests/test_", "plugins/fiber_local/tests/")
#: and those that are about this checkout, whatever machine it is on
OF_CHECKOUT = tuple(
    f"tests/{name}" for name in ("architecture/", "benchmarks/", "ci/", "docs/", "test_")
)
#: a link to a file of tests in a table
_PROMISED = re.compile(r"^\|.*", re.MULTILINE), re.compile(r"\]\(([\w/]+\.py)\)")


#: of what depends on the Python: what is left out of the files that do not follow it
LEFT = {
    "python": "all but one case of each test",
    "between": "all but one test of each class and file",
    "followers": "all, and in the others all but one case of each test",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fiber").addoption(
        "--part", choices=["quick", "rest", *LEFT], help="see tests/support/pythons.py"
    )
    parser.getgroup("fiber").addoption(
        "--half", metavar="SEED", default="", help="run half the tests, which the seed chooses"
    )


def pytest_configure(config: pytest.Config) -> None:
    all_are_meant = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    # workers of xdist are told the outcome
    is_master = not hasattr(config, "workerinput")
    if is_master and config.option.part == "quick":
        config.option.part = "quick" if all_are_meant and not config.option.keyword else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even import what will not run: its asserts are rewritten, on each Python anew."""
    is_left = config.option.part == "followers" and collection_path.suffix == ".py"
    return True if is_left and not _follows(collection_path) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, half = config.option.part, config.option.half
    # of what has failed in a part, other cases are not collected, and nothing is left to choose
    if (part or half) and not config.getoption("lf", default=False):
        kept = _chosen(part, items) if part else set(items)
        if half:
            kept = _half(half, kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.option.part in LEFT:
        # all of it is left to the main Python
        session.exitstatus = pytest.ExitCode.OK


def _chosen(part: str, items: list[pytest.Item]) -> set[pytest.Item]:
    if part in {"quick", "rest"}:
        whole = promised()
        here = [item for item in items if not item.nodeid.startswith(OF_CHECKOUT)]
        quick = set(_one_of_each(here, lambda item: item.nodeid.startswith(whole), _group))
        return quick if part == "quick" else set(items) - quick
    here = [item for item in items if not item.nodeid.startswith(tuple(LEFT_OUT))]
    if part == "followers":
        following = [item for item in here if _follows(item.path)]
        return set(
            _one_of_each(following, lambda item: item.nodeid.startswith(COMPARED), _function)
        )
    group = _group if part == "between" else _function
    return set(_one_of_each(here, lambda item: _follows(item.path), group))


def _half(seed: str, items: set[pytest.Item]) -> set[pytest.Item]:
    """The half of some tests that comes first in an order that a seed makes, and all of the checkout."""

    def place(item: pytest.Item) -> bytes:
        return hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest()

    whole = {item for item in items if item.nodeid.startswith(OF_CHECKOUT)}
    others = sorted(items - whole, key=place)
    return whole | set(others[: (len(others) + 1) // 2])


def promised() -> tuple[str, ...]:
    """Beginnings of tests' names that ``--part quick`` runs whole: what users call and are promised."""
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
    """Whether a file, or a program beside it, uses what differs from Python to Python."""
    files = (path, *path.parent.glob("programs/*.py"))
    return any(_FOLLOWS.search(file.read_text(encoding="utf-8")) for file in files)


def _function(item: pytest.Item) -> object:
    return item.parent, getattr(item, "originalname", item.name)


def _group(item: pytest.Item) -> object:
    return item.parent


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell what was left out, also where workers of xdist collected."""
    part = config.option.part
    if part == "quick":
        terminalreporter.line("a part of the tests, for users: bootstrap.py test --all runs all")
    if half := config.option.half:
        terminalreporter.line(f"half the tests, by --half {half}; without it all run")
    if part in LEFT:
        terminalreporter.section("left to the main Python")
        for name, why in LEFT_OUT.items():
            terminalreporter.line(f"{name}: {why}")
        terminalreporter.line(f"in files that use none of {', '.join(FOLLOWED)}: {LEFT[part]}")
