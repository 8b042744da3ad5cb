"""Proves of every test that it left no thread, process, socket file or folder, and no setting.

The whole session runs in a run root of its own, so that other programs of the same user are
neither seen nor disturbed, and every process of it carries a mark in its environment, by which
orphans are found at the end.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

import process_signals
import waiting

_MARK = "PYTEST_FIBER_SESSION"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)
# helpers that the standard library keeps until the interpreter ends
_STDLIB_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_PATIENCE = 8.0
#: processes that fixtures of wider scope start during tests, and those whose children are; they end with
#: the fixture
restarted: set[int] = set()
_environ = pytest.MonkeyPatch()
# a script has them ignored in what it runs with "&" or nohup, and programs of tests would inherit that
_HANDLERS = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
}


@attrs.frozen
class Snapshot:
    """What a test may not change."""

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    files: frozenset[str]
    settings: dict[str, object]

    @classmethod
    def take(cls) -> Snapshot:
        loggers = (logging.getLogger(), logging.getLogger("fiber"))
        environ = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        return cls(
            threads=frozenset(
                thread
                for thread in threading.enumerate()
                # a thread of nng's that once called back; it belongs to no test
                if not isinstance(thread, threading._DummyThread)
            ),
            processes=frozenset(_descendants(os.getpid())),
            files=frozenset(_listing(Path(os.environ.get("XDG_RUNTIME_DIR", os.devnull)))),
            settings={
                **{f"os.environ[{name!r}]": value for name, value in environ.items()},
                "handlers": [
                    handler
                    for logger in loggers
                    for handler in logger.handlers
                    if not type(handler).__module__.startswith("_pytest.")
                ],
                "levels": [logger.level for logger in loggers],
                "signals": [signal.getsignal(number) for number in _SIGNALS],
                "cwd": str(Path.cwd()),
            },
        )

    def lingering(self, *, kept: bool) -> list[str]:
        """What is here now that was not, and needs a moment to go."""
        now = Snapshot.take()
        found = [
            f"thread {thread.name!r}"
            for thread in now.threads - self.threads
            if not (kept and _is_of_the_run(thread))
        ]
        found += [
            f"process {pid}: {command}"
            for pid in now.processes - self.processes
            if (command := _command(pid)) and not any(name in command for name in _STDLIB_HELPERS)
        ]
        new = {name for name in now.files - self.files if not (kept and _is_of_a_run(name))}
        found += [f"file {name}" for name in sorted(new)]
        return found

    def whereabouts(self) -> list[str]:
        """Where each thread is that was not there: what it waits for is why it is left."""
        frames = sys._current_frames()
        return [
            f"{thread.name}: {line.strip()}"
            for thread in set(threading.enumerate()) - self.threads
            if thread.ident in frames
            for entry in traceback.format_stack(frames[thread.ident])[-6:]
            for line in entry.splitlines()
        ]

    def changed(self) -> list[str]:
        """Settings that are not as they were."""
        now = Snapshot.take().settings
        return [
            f"{name}: was {self.settings.get(name)!r}, is {now.get(name)!r}"
            for name in sorted(self.settings.keys() | now.keys())
            if self.settings.get(name) != now.get(name)
        ]


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, a file of the run root or a changed setting."""
    shared = _runtime()
    before = Snapshot.take()
    yield
    # one that was there before belongs to a fixture of wider scope, which closes it itself
    if _runtime() is not shared:
        _close_runtime()
    if request.node.get_closest_marker("lingers"):
        return
    problems = _still(lambda: before.lingering(kept=shared is not None)) + before.changed()
    if problems:
        problems += before.whereabouts()
        pytest.fail("this test left behind:\n  " + "\n  ".join(problems), pytrace=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets, which those of pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="ft-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def shared_runtime() -> Iterator[None]:
    """One runtime, with its supervisor up, for all tests of a module that asks for it."""
    import fiber

    process = fiber.Process(target=int)
    process.start()
    process.join(60)
    yield
    _close_runtime()


def pytest_configure() -> None:
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    _environ.setenv(_MARK, f"{os.getpid()}-{time.time_ns()}")
    _environ.setenv("XDG_RUNTIME_DIR", tempfile.mkdtemp(prefix="ft-"))
    # the root of all runs stays when a run is over, so no single test makes it
    Path(os.environ["XDG_RUNTIME_DIR"], "fiber").mkdir(mode=0o700)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _close_runtime()
    if left := _still(_orphans):
        lines = [f"  {process.pid}: {_command(process.pid)}" for process in left]
        print("\nthese processes outlived the tests:", *lines, sep="\n", file=sys.stderr)
        for process in left:
            process.kill()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
    _environ.undo()


def _still(look: Callable[[], list[Any]]) -> list[Any]:
    """What is left after a while, looking until it is nothing."""
    if look():
        # the traceback of an expected error may hold a handle, in a cycle with the error
        gc.collect()
    return waiting.left(look, _PATIENCE)


def _is_of_a_run(file: str) -> bool:
    # a run that goes on keeps logs, and what members of rings left that were killed, until it ends
    # and the folder of the records of named shared memory, but no record
    return "/logs/" in file or "/fiber-ring-" in file or file.endswith("/shared_memory")


def _is_of_the_run(thread: threading.Thread) -> bool:
    """Whether it is one that backends elsewhere start when first needed, and keep until the end."""
    # the variable is set where --fiber-backend chose one
    return thread.name.startswith("fiber-") and "FIBER_BACKEND" in os.environ


def _runtime() -> Any:
    # asked only where something imported it: most tests need no runtime, and must not load one
    module = sys.modules.get("fiber._runtime.runtime")
    return None if module is None else module.started()


def _close_runtime() -> None:
    runtime = _runtime()
    if runtime is not None:
        runtime.close()


def _orphans() -> list[psutil.Process]:
    return [
        process
        for process in process_signals.with_variable(_MARK, os.environ[_MARK])
        if process.pid != os.getpid()
        and not any(name in _command(process.pid) for name in _STDLIB_HELPERS)
    ]


def _descendants(pid: int) -> Iterator[int]:
    tasks = Path(f"/proc/{pid}/task")
    if sys.platform != "linux":
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        return
    children: list[int] = []
    # it, or one of its threads, may end while we look
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in list(tasks.iterdir()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children += map(int, (task / "children").read_text().split())
    for child in children:
        if child not in restarted:
            yield child
            yield from _descendants(child)


def _command(pid: int) -> str:
    """The command line of a process; empty where it has ended, zombies named as such."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"{process.name()} (ended, and nobody waited for it)"
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return ""


def _listing(root: Path) -> Iterator[str]:
    # unlike rglob, it goes on where a folder goes away meanwhile
    for folder, folders, files in os.walk(root):
        # the lock file of a device stays: whoever removed it might do so while another locks it
        names = (*folders, *(name for name in files if not name.startswith("device-")))
        yield from (str(Path(folder, name).relative_to(root)) for name in names)
