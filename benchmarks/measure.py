"""Runs rows: interleaved rounds of those that are judged, each contender in a program of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import contenders, rows
from benchmarks.model import FLOOR, JUDGED, Row, Sizes, Values

ROOT = Path(__file__).parents[1]
#: seconds that a round, or a framework's start, may take
PATIENCE = 600.0

Say = Callable[[str], None]


class ContenderError(Exception):
    """A contender did not do its round; the text has what it wrote."""


def environment() -> dict[str, str]:
    """Environment of the programs that are measured.

    They keep what they compile: an installed package is compiled, and so is the standard library,
    whatever a variable of this environment has a checkout do.
    """
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path}


class Driver:
    """A program that runs rounds; see :mod:`benchmarks.driver`."""

    def __init__(self, row: str, contender: str, sizes: Sizes) -> None:
        self._name = f"{contender} at {row}"
        # removed with its last descriptor
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed by close()
        self._socket: socket.socket | None = None
        #: the program's, which a launcher may have started
        self._pid: int | None = None
        # a launcher of a framework's passes no standard input on
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(folder, "socket"))
            listener.bind(address)
            listener.listen()
            words = (sys.executable, "-m", "benchmarks.driver", row, contender)
            self._process = subprocess.Popen(
                [*contenders.launcher(contender), *words, json.dumps(sizes), address],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                cwd=ROOT,
                env=environment(),
            )
            try:
                self._socket = self._accept(listener)
                self._answers = self._socket.makefile("r")
                self._pid = int(self._answer())
            except BaseException:
                self.close()
                raise

    def round(self) -> Mapping[str, float]:
        """Have a round done.

        Raises:
            ContenderError: it ended, or took longer than a round may take.
        """
        assert self._socket is not None
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(b"round\n")
        values: dict[str, float] = json.loads(self._answer())
        return values

    def close(self) -> None:
        """End it.

        Raises:
            ContenderError: it did not end by itself; the text has where it stood.
        """
        if self._socket is not None:
            self._answers.close()
            self._socket.close()
        try:
            self._process.wait(PATIENCE / 10)
        except subprocess.TimeoutExpired:
            # faulthandler writes the stacks of its threads
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid or self._process.pid, signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE / 10)
            self._process.kill()
            self._process.wait()
            what = "did not end"
            raise self._error(what) from None
        finally:
            self._errors.close()

    def _error(self, what: str) -> ContenderError:
        # what it wrote last comes after the end of its connection
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._errors.seek(0)
        return ContenderError(f"{self._name} {what}:\n{self._errors.read()[-5000:]}")

    def _accept(self, listener: socket.socket) -> socket.socket:
        what, deadline = "ended", time.monotonic() + PATIENCE
        while self._process.poll() is None:
            if select.select([listener], [], [], 0.1)[0]:
                accepted = listener.accept()[0]
                accepted.settimeout(PATIENCE)
                return accepted
            if time.monotonic() > deadline:
                what = f"did not begin for {PATIENCE:.0f} s"
                break
        raise self._error(what)

    def _answer(self) -> str:
        what = "ended"
        try:
            if line := self._answers.readline():
                return line
        except TimeoutError:
            what = f"gave no answer for {PATIENCE:.0f} s"
        raise self._error(what)


def measure(
    names: Sequence[str], others: Sequence[str], sizes: Sizes, rounds: int, say: Say
) -> Iterator[tuple[str, Values]]:
    """Yield each row's values.

    Args:
        names: of rows.
        others: frameworks to measure besides, each after the judged ones are done, because what
            they leave running in the background would disturb those.
        sizes: how much a round does.
        rounds: how many there are.
        say: told what goes on.
    """
    for name in names:
        row = rows.load(name)
        values: dict[str, dict[str, list[float]]] = {metric.name: {} for metric in row.METRICS}
        judged = [who for who in JUDGED if can(row, who)]
        # a contender of this row alone is no framework that anybody installs
        known = {*JUDGED, *contenders.OTHERS}
        named = [who for who in row.CONTENDERS or () if who not in known] if others else []
        for group in (judged, *([who] for who in (*named, *others) if can(row, who))):
            say(f"{name}: {', '.join(group)}")
            try:
                _run(name, group, sizes, rounds, values)
            except ContenderError as error:
                if group is judged:
                    raise
                say(str(error))
        yield name, values


def can(row: Row, contender: str) -> bool:
    """True where a contender can do a row."""
    if contender == FLOOR:
        return any(bar.against == FLOOR for metric in row.METRICS for bar in metric.bars)
    return row.CONTENDERS is None or contender in row.CONTENDERS


def _run(
    name: str,
    group: Sequence[str],
    sizes: Sizes,
    rounds: int,
    values: dict[str, dict[str, list[float]]],
) -> None:
    with contextlib.ExitStack() as stack:
        drivers = {}
        for who in group:
            drivers[who] = Driver(name, who, sizes)
            stack.callback(drivers[who].close)
        for number in range(rounds):
            # nobody is always first, or always behind the same one
            turn = number % len(group)
            for who in (*group[turn:], *group[:turn]):
                for metric, value in drivers[who].round().items():
                    values[metric].setdefault(who, []).append(value)
