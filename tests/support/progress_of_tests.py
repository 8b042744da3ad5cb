"""``--progress``: how far the tests are, in place of a letter for each; failures are named at once."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from progress import Progress


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fiber").addoption(
        "--progress", action="store_true", help="show how far the tests are, and the time left"
    )


def pytest_configure(config: pytest.Config) -> None:
    # workers of xdist tell nobody; -v asks for a line a test
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--progress") and not is_worker and config.option.verbose <= 0:
        config.pluginmanager.register(_Tests(config))


class _Tests:
    """The tests of a session, done and still to be done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left: set[str] = set()
        self._all = 0
        self._failed = 0
        self._progress: Progress | None = None

    def pytest_sessionstart(self) -> None:
        # a thread would be one more where tests fork; without workers there are only lines of tests
        if self._config.getoption("numprocesses", None):
            self._progress = Progress(_Output(self._config), self._state)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._expect(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Iterator[Any]:
        category, letter, word = yield
        return category, "" if self._progress else letter, word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._progress:
            self._failed += 1
            _Output(self._config).line(f"FAILED {report.nodeid} ({report.when})")
        if report.when == "teardown":
            self._left.discard(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._progress:
            self._progress.end()
            self._progress = None

    def _expect(self, ids: Iterable[str]) -> None:
        # each worker collects all of them
        if not self._all:
            self._left = set(ids)
            self._all = len(self._left)

    def _state(self) -> tuple[float, str]:
        if not self._all:
            return 0.0, "collecting tests"
        ended = self._all - len(self._left)
        failed = f", {self._failed} failed" if self._failed else ""
        return ended / self._all, f"{ended} of {self._all} tests{failed}"


class _Output:
    """The reporter's output, which pytest does not capture."""

    def __init__(self, config: pytest.Config) -> None:
        self._writer = config.get_terminal_writer()

    def write(self, text: str) -> None:
        self._writer.write(text)

    def line(self, text: str) -> None:
        self._writer.line(f"\r{text}\033[K" if self.isatty() else text)

    def flush(self) -> None:
        self._writer.flush()

    def isatty(self) -> bool:
        return self._writer.hasmarkup
