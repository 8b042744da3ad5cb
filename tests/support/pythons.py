"""``--other-python``: on Pythons besides the main one, tests run of what depends on the Python.

Signatures, pickling, start methods, contexts, the transport, processes, pools, queues, managers and
deaths of each do. What is named below does not: it is one piece of code, judged on the main Python.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

__all__ = ["LEFT_OUT"]

_PURE = "a state machine without I/O, for which hypothesis makes up orders of events"
_KIT = "the kit judges backends, and is judged itself, by the same code everywhere"
#: beginnings of tests' names, and why they run on the main Python alone
LEFT_OUT: Mapping[str, str] = {
    "fiber_core/tests/cli/test_plugin.py": _KIT,
    "fiber_core/tests/testing/": _KIT,
    "plugins/fiber_local/tests/test_conformance.py::TestLocalBackend": _KIT,
    "fiber_core/tests/launch/test_lease.py": _PURE,
    "fiber_core/tests/launch/test_roster.py": _PURE,
    "fiber_core/tests/objects/test_channel.py": _PURE,
    "fiber_core/tests/objects/test_lane_machine.py": _PURE,
    "fiber_core/tests/pending/": _PURE,
    "fiber_core/tests/resources/test_allocator.py": _PURE,
    "fiber_core/tests/transport/test_wire.py": _PURE,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fiber").addoption(
        "--other-python",
        action="store_true",
        help="leave out what does not depend on the Python; see tests/support/pythons.py",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--other-python"):
        return
    beginnings = tuple(LEFT_OUT)
    out = {item for item in items if item.nodeid.startswith(beginnings)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell what was left out, also where workers of xdist collected."""
    if not config.getoption("--other-python"):
        return
    terminalreporter.section("left to the main Python")
    for reason in dict.fromkeys(LEFT_OUT.values()):
        terminalreporter.line(f"{reason}:")
        for name, why in LEFT_OUT.items():
            if why == reason:
                terminalreporter.line(f"  {name}")
