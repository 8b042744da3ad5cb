"""Runs stages side by side: each bounded in time, each printed whole when it ends.

A stage is a function that runs commands. Tests that failed are run once more when nothing else
runs: what fails then has failed, and what passes then is flaky, which is reported by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import secrets
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

import reports

__all__ = ["Lanes", "Running", "Stage", "StageError"]

#: seconds that a command which hangs has to show where
LAST_WORDS = 20.0
#: with these pytest runs what failed, in one process
_ALONE = ("--last-failed", "--last-failed-no-failures", "none", "-n", "0")
#: in the environment of whatever a command starts
_MARK = "CI_STAGE"
_HUNG = "hung"
_numbers = itertools.count()


class StageError(Exception):
    """A command of a stage ended otherwise than with 0, or did not end in time."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """Something that a change must pass."""

    name: str
    do: Callable[[Running], object]
    #: one that takes longer hangs
    minutes: float = 30


@dataclasses.dataclass(frozen=True)
class Command:
    """A program with its arguments, and its environment."""

    argv: tuple[str, ...]
    #: what it has besides ours
    environ: Mapping[str, str]
    #: of ours, the names that it has; None for all
    keeps: Container[str] | None = None

    def environment(self) -> dict[str, str]:
        """All that it has."""
        ours = {
            name: value
            for name, value in os.environ.items()
            if self.keeps is None or name in self.keeps
        }
        return {**ours, **self.environ}


class Running:
    """A stage that runs, and then what it came to.

    Args:
        stage: what to run.
        log: where its commands write; what their tests remember lies beside it.
        mark: by which its processes are known.
        until: when all stages must be over, on the monotonic clock.
    """

    def __init__(self, stage: Stage, log: Path, mark: str, until: float) -> None:
        self.stage = stage
        self.log = log
        self.verdict = "has not run"
        self.seconds = 0.0
        #: processor time of the processes that somebody waited for
        self.cpu = 0.0
        #: names of tests that failed and then passed alone
        self.flaky: list[str] = []
        #: results of its tests, but for those of the second attempt
        self.results: list[reports.Result] = []
        self._mark = mark
        self._until = until
        self._failed_tests: list[tuple[Command, Path]] = []
        self._deadline = 0.0

    @property
    def passed(self) -> bool:
        """Whether all went well so far."""
        return self.verdict.startswith("ok")

    @property
    def has_failed_tests(self) -> bool:
        """Whether nothing but tests failed, which may still pass alone."""
        return self.verdict == "tests failed"

    # -- what a stage does

    def run(self, *argv: str | Path, keeps: Container[str] | None = None, **environ: str) -> None:
        """Run a command.

        Args:
            argv: the command.
            keeps: of our environment the names that it has; None for all.
            environ: what it has besides.

        Raises:
            StageError: it ended otherwise than with 0, or not in time.
        """
        self._succeed(Command(tuple(map(str, argv)), environ, keeps))

    def can(self, *argv: str | Path) -> bool:
        """Whether a command ends with 0, which it need not.

        Raises:
            StageError: it did not end in time.
        """
        return self._call(Command(tuple(map(str, argv)), {})) == 0

    def tests(
        self,
        *argv: str | Path,
        keeps: Container[str] | None = None,
        cache: Path | None = None,
        **environ: str,
    ) -> None:
        """Run a command that ends with arguments for pytest; tests may fail once.

        Args:
            argv: the command.
            keeps: of our environment the names that it has; None for all.
            cache: where they remember what failed; None for a folder beside the log.
            environ: what it has besides.

        Raises:
            StageError: it could not run its tests, or not in time.
        """
        # what one run of tests remembers is nothing to another
        cache = cache or self.log.with_suffix(f".cache{next(_numbers)}")
        remembered = ("-o", f"cache_dir={cache}", f"--junitxml={_report(cache)}")
        # the family that takes what tests record
        words = (*map(str, argv), *remembered, "-o", "junit_family=xunit1")
        command = Command(words, environ, keeps)
        code = self._call(command)
        self.results += reports.read(_report(cache))
        if code == 1:
            self._failed_tests.append((command, cache))
        elif code:
            raise StageError(code)

    def say(self, text: str) -> None:
        """Write a line among what the commands write."""
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")

    # -- what is done with it

    def begin(self) -> None:
        """Do what the stage does."""
        self._judge(lambda: self.stage.do(self))
        if self.passed and self._failed_tests:
            self.verdict = "tests failed"

    def try_again(self) -> None:
        """Run the tests that failed once more, while nothing else runs."""
        self.log = self.log.with_suffix(".again")
        again = []
        for command, cache in self._failed_tests:
            _report(cache).unlink(missing_ok=True)
            again.append(dataclasses.replace(command, argv=(*command.argv, *_ALONE)))
        self._judge(lambda: self._succeed(*again))
        now = {
            one.name
            for _, cache in self._failed_tests
            for one in reports.read(_report(cache))
            if not one.failed
        }
        self.flaky = sorted({one.name for one in self.results if one.failed} & now)
        if self.passed:
            self.verdict = "ok, flaky"
            # reported, whatever became of the reports that have the names
            self.flaky = self.flaky or [f"a test whose name is in {self.log}"]

    def _judge(self, do: Callable[[], object]) -> None:
        began = time.monotonic()
        self._deadline = min(began + self.stage.minutes * 60, self._until)
        try:
            do()
        except StageError as error:
            self.verdict = f"FAILED ({error})"
        except Exception as error:
            # whatever is wrong with one stage, the others run
            self.say(f"{type(error).__name__}: {error}")
            self.verdict = "FAILED"
        else:
            self.verdict = "ok"
        self.seconds += time.monotonic() - began

    def _succeed(self, *commands: Command) -> None:
        for command in commands:
            if code := self._call(command):
                raise StageError(code)

    def _call(self, command: Command) -> int:
        self.say(f"$ {' '.join(command.argv)}")
        mark = f"{self._mark}/{next(_numbers)}/"
        with self.log.open("ab") as stream:
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**command.environment(), _MARK: mark},
                start_new_session=True,
            )
        in_time = _ends(process.pid, self._deadline - time.monotonic())
        if not in_time:
            self.say("no end in time; it hangs here:")
            _have_it_say_where(process.pid)
        # a worker of pytest's that was ended in the midst of a test leaves what the test had started
        if left := kill_marked(mark):
            self.say(f"killed what was left running: {', '.join(left)}")
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu += used.ru_utime + used.ru_stime
        if not in_time:
            raise StageError(_HUNG)
        return process.returncode


class Lanes:
    """Stages in lanes that run side by side; one that has no more takes over from the fullest.

    Args:
        lanes: what to run in each, in order.
        logs: a folder for what it writes.
        minutes: when all must be over, so that whoever waits no longer hears of them.
    """

    def __init__(self, lanes: Sequence[Sequence[Stage]], logs: Path, minutes: float) -> None:
        self.done: list[Running] = []
        self._left = [deque(lane) for lane in lanes]
        self._logs = logs
        self._until = time.monotonic() + minutes * 60
        self._mark = secrets.token_hex(8)
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all stages, then once more what tests failed."""
        threads = [threading.Thread(target=self._work, args=(lane,)) for lane in self._left]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            with self._lock:
                for lane in self._left:
                    lane.clear()
            kill_marked(self._mark)
            raise
        # those that a lane left which ended by a fault of this script have not passed
        self.done += [self._running(stage) for lane in self._left for stage in lane]
        for one in self.done:
            if one.has_failed_tests:
                one.try_again()
                self._show(one, "once more, alone")

    def _work(self, mine: deque[Stage]) -> None:
        while (one := self._next(mine)) is not None:
            one.begin()
            self._show(one, f"{one.verdict}, {one.seconds:.0f} s")

    def _next(self, mine: deque[Stage]) -> Running | None:
        with self._lock:
            fullest = max(self._left, key=len)
            if not fullest:
                return None
            stage = mine.popleft() if mine else fullest.pop()
            one = self._running(stage)
            self.done.append(one)
            print(f"... {stage.name} begins", flush=True)
            return one

    def _running(self, stage: Stage) -> Running:
        name = re.sub(r"[^a-z0-9]+", "-", stage.name.lower()).strip("-")
        return Running(stage, self._logs / f"{name}.log", self._mark, self._until)

    def _show(self, one: Running, what: str) -> None:
        text = one.log.read_text(encoding="utf-8", errors="replace") if one.log.exists() else ""
        with self._lock:
            print(f"\n=== {one.stage.name}: {what}\n{text}", flush=True)


def kill_marked(mark: str) -> list[str]:
    """Kill all processes whose mark begins so, whatever they made of themselves; their commands."""
    wanted = f"{_MARK}={mark}".encode()
    killed = []
    for folder in Path("/proc").glob("[0-9]*"):
        # they end meanwhile, and some are not ours
        with contextlib.suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            if any(word.startswith(wanted) for word in words):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(f"{folder.name} ({command})")
    return killed


def _report(cache: Path) -> Path:
    """The file in which tests that remember in a folder tell their results."""
    return cache.with_name(f"{cache.name}.xml")


def _have_it_say_where(pid: int) -> None:
    """End a command that hangs, which writes the stacks of its threads; pytest the results of its tests, too."""
    workers = _workers(pid)
    for worker in workers:
        # the test that it runs has failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGABRT)
    if workers and not _ends(pid, LAST_WORDS / 2):
        # another one would go on with the tests that are left
        os.kill(pid, signal.SIGINT)
    if not workers or not _ends(pid, LAST_WORDS):
        os.killpg(pid, signal.SIGABRT)
        _ends(pid, LAST_WORDS)


def _workers(pid: int) -> list[int]:
    """Workers of pytest-xdist among the children of a process."""
    found = []
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        for child in path.read_text().split():
            # they end meanwhile
            with contextlib.suppress(OSError):
                if b"exec(eval(sys.stdin" in (Path("/proc") / child / "cmdline").read_bytes():
                    found.append(int(child))
    return found


def _ends(pid: int, seconds: float) -> bool:
    """Wait for the end of a child, without taking its exit code."""
    with open(os.pidfd_open(pid), "rb", buffering=0) as end:
        return bool(select.select([end], [], [], max(0.0, seconds))[0])
