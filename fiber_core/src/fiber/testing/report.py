"""Pytest plugin, ``-p fiber.testing.report``: results of the kits as JSON, their progress, a choice of levels."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fiber._version import __version__

if TYPE_CHECKING:
    from fiber.testing.kit.platform import Facts

#: version of the layout of the results
FORMAT = 1
_RECORD = "fiber_kit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kits' options."""
    group = parser.getgroup("fiber", "conformance kits of Fiber")
    group.addoption(
        "--fiber-kit-json", metavar="PATH", help="write the results of Fiber's kits to a file"
    )
    group.addoption(
        "--fiber-kit-levels",
        metavar="LEVELS",
        help="run the tests of these levels of Fiber's kits only, such as 1-3 or 2,6",
    )
    group.addoption(
        "--fiber-kit-progress",
        metavar="FD",
        type=int,
        help="write a line of JSON for each test that begins or ends to this file descriptor",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder in the main process, if results are to be written."""
    path = config.getoption("--fiber-kit-json")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "fiber-kit-recorder")
    descriptor = config.getoption("--fiber-kit-progress")
    if descriptor is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ProgressWriter(descriptor), "fiber-kit-progress")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the kits of other levels than the chosen ones."""
    words = config.getoption("--fiber-kit-levels")
    if not words:
        return
    from fiber.testing.kit.platform import Kit, level_of

    selected = levels(words)
    out = []
    for item in items:
        cls = getattr(item, "cls", None)
        if cls is not None and issubclass(cls, Kit):
            level = level_of(cls, getattr(item, "originalname", item.name))
            if level is not None and level not in selected:
                out.append(item)
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def levels(words: str) -> set[int]:
    """Parse levels such as ``1-3`` or ``2,6``.

    Raises:
        pytest.UsageError: the text is malformed.
    """
    found: set[int] = set()
    try:
        for part in words.split(","):
            first, to, last = part.partition("-")
            found.update(range(int(first), int(last if to else first) + 1))
    except ValueError:
        msg = f"--fiber-kit-levels is {words!r}; write levels as 1-3 or 2,6"
        raise pytest.UsageError(msg) from None
    return found


def as_text(results: Mapping[str, Any]) -> str:
    """Format results as JSON with a line for each test, so that two files can be compared."""
    lines: list[str] = []
    for line in json.dumps(results, indent=1).splitlines():
        # deeper levels are joined to the line of their test
        if line.startswith("    ") and not line.startswith("    {"):
            lines[-1] += (" " if lines[-1].endswith(",") else "") + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


class Recorder:
    """Recorder of the reports of kits' tests; writes them when the session ends.

    Args:
        path: file to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._subjects: dict[tuple[str, str], dict[str, Any]] = {}
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a phase of a test."""
        facts: Facts | None = dict(report.user_properties).get(_RECORD)  # type: ignore[assignment]
        if facts is None or not facts.get("kit"):
            return
        where, _, name = report.nodeid.rpartition("::")
        test = self._tests.get(report.nodeid)
        if test is None:
            test = self._tests[report.nodeid] = {"name": name, "outcome": "passed", "seconds": 0.0}
            self._subject(facts["kit"], where)["tests"].append(test)
        subject = self._subject(facts["kit"], where)
        for key in ("name", "capabilities", "distribution", "version"):
            if key in facts:
                subject[key] = facts[key]
        test["level"] = facts["level"]
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        if "measured" in facts:
            test["measured"] = facts["measured"]
        outcome, reason = _outcome(report)
        if outcome != "passed" and test["outcome"] != "failed":
            test["outcome"] = outcome
            test["reason"] = reason

    def _subject(self, kit: str, where: str) -> dict[str, Any]:
        found = self._subjects.get((kit, where))
        if found is None:
            found = self._subjects[kit, where] = {
                "kit": kit,
                "name": "",
                "class": where.rpartition("::")[2],
                "tests": [],
            }
        return found

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(as_text(self.results()), encoding="utf-8")

    def results(self) -> dict[str, Any]:
        """Return all results so far, each subject's tests sorted by level and name."""
        for subject in self._subjects.values():
            subject["tests"].sort(key=lambda test: (test["level"] or 0, test["name"]))
        return {
            "format": FORMAT,
            "fiber": __version__,
            "python": platform.python_version(),
            "platform": sys.platform,
            "subjects": [self._subjects[key] for key in sorted(self._subjects)],
        }


class ProgressWriter:
    """Writer of a line of JSON when the tests are known, and as each begins and ends.

    Args:
        descriptor: file descriptor to write to; the processes of tests do not inherit it.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8")
        self._outcome = "passed"
        self._seconds = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write how many tests there are."""
        self._write(tests=len(session.items))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write which test begins."""
        self._outcome, self._seconds = "passed", 0.0
        self._write(begins=nodeid.rpartition("::")[2])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a test's phases; the worst one is its outcome."""
        self._seconds += report.duration
        outcome, _ = _outcome(report)
        if outcome != "passed" and self._outcome != "failed":
            self._outcome = outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write how a test ended."""
        name = nodeid.rpartition("::")[2]
        self._write(ended=name, outcome=self._outcome, seconds=round(self._seconds, 3))

    def pytest_unconfigure(self) -> None:
        """Close the descriptor."""
        self._file.close()

    def _write(self, **facts: Any) -> None:
        self._file.write(json.dumps(facts) + "\n")


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    why = getattr(report, "wasxfail", None)
    if report.skipped:
        if why is not None:
            return "xfailed", why
        longrepr = report.longrepr
        text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        return "skipped", text.removeprefix("Skipped: ")
    if report.failed:
        lines = [line for line in report.longreprtext.splitlines() if line.strip()]
        errors = [line[1:].strip() for line in lines if line.startswith("E ")]
        return "failed", (errors or lines or [""])[0]
    return "passed", ""
