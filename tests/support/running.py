"""Programs that run while tests disturb what they run on; one of them maps again and again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_MAPS = """
import json, os, sys, threading, time
import fiber
from fiber._plugins.manager import Source
from fiber._runtime import runtime
from fiber.hookspecs import hookimpl

def square(number):
    time.sleep(0.02)
    return number * number

def close():
    os.closerange(3, 1024)

def eat(mark):
    held = []
    while is_first(mark):
        held.append(bytearray(b"x" * (20 << 20)))

def linger(mark):
    while is_first(mark):
        time.sleep(1)

def is_first(mark):
    # of several attempts; the file of the second one says that it was made
    try:
        with open(mark, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        with open(mark) as file:
            if file.read() == str(os.getpid()):
                return True
        open(f"{mark}.again", "w").close()
        return False
    return True

class Ends:
    @hookimpl
    def fiber_job_changed(self, job, current):
        if current.state.is_terminal:
            told = {"job": job.id, "host": current.host, "reason": str(current.reason)}
            with open("ends", "a") as file:
                file.write(json.dumps({**told, "message": current.message}) + "\\n")

def obey(pool):
    for line in sys.stdin:
        what, *mark = line.split()
        pool.apply_async(globals()[what], mark)

def main():
    want = [number * number for number in range(150)]
    ends = Ends()
    fiber.init()
    runtime.current().plugins.register(ends, Source.of_object(ends))
    with fiber.Pool(3) as pool:
        asked = threading.Thread(target=obey, args=(pool,), daemon=True)
        asked.start()
        while asked.is_alive():
            found = pool.map(square, range(150), chunksize=1)
            print("right" if found == want else f"wrong: {found}", flush=True)
        pool.close()
        pool.join()
    print("over", flush=True)

if __name__ == "__main__":
    main()
"""


class Program:
    """A program of Python's, running; a test's own timeout ends waits for it.

    Args:
        folder: its working directory.
        words: its file and arguments.
        environ: what it has besides the environment of the tests.
        enter: words of a command that runs it elsewhere.
    """

    def __init__(
        self, folder: Path, *words: str, environ: Mapping[str, str], enter: Sequence[str] = ()
    ) -> None:
        self.process = subprocess.Popen(
            [*enter, sys.executable, *words],
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end_input(self) -> None:
        """Close its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return line.strip()

    def end(self) -> None:
        """Have it end by itself within a minute, which goes well."""
        self.end_input()
        assert self.process.wait(60) == 0

    def close(self) -> None:
        """End it, if it has not ended. Idempotent."""
        self.process.kill()
        with self.process:
            pass


class Maps(Program):
    """One each of whose maps takes about a second."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        #: where it runs
        self.folder = folder
        (folder / "maps.py").write_text(_MAPS)
        self._ends = folder / "ends"
        self._ends.unlink(missing_ok=True)
        super().__init__(folder, "maps.py", environ=environ)

    def wait_right(self) -> None:
        """Wait until one more map has ended, which had the right results."""
        assert self.line() == "right"

    def close_descriptors(self) -> None:
        """Have a task beside the map close all descriptors of its worker, on each attempt."""
        self.tell("close")

    def eat(self, mark: Path) -> None:
        """Have a task take all memory on its first attempt, whose pid is in the mark.

        A second attempt is told by a file beside the mark, ``.again``.
        """
        self.tell(f"eat {mark}")

    def linger(self, mark: Path) -> None:
        """As :meth:`eat`, for one that does not end on its first attempt."""
        self.tell(f"linger {mark}")

    def ends(self) -> list[dict[str, str]]:
        """How jobs ended so far: each has its ``job``, ``host``, ``reason`` and ``message``."""
        if not self._ends.exists():
            return []
        return [json.loads(line) for line in self._ends.read_text().splitlines()]

    def withstand(
        self, rng: random.Random, fail: Callable[[Maps, random.Random], str]
    ) -> list[str]:
        """Have something fail four times: all maps are right.

        Args:
            rng: chance of the moments and of what fails.
            fail: called with this program and that chance; makes something fail, returns its name.
        """
        failed = []
        for _ in range(4):
            self.wait_right()
            # the moment is random, not waited for: faults come when they come
            time.sleep(rng.uniform(0, 1))
            failed.append(fail(self, rng))
        self.wait_right()
        return failed

    def end(self) -> None:
        """Have it end by itself, which goes well."""
        self.end_input()
        while (line := self.line()) != "over":
            assert line == "right"
        assert self.process.wait() == 0
