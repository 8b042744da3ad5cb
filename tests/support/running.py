"""Programs that run while tests disturb what they run on; one of them maps again and again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_MAPS = """
import os, sys, threading, time
import fiber

def square(number):
    time.sleep(0.02)
    return number * number

def obey(pool):
    for _ in sys.stdin:
        pool.apply_async(os.closerange, (3, 1024))

def main():
    want = [number * number for number in range(150)]
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
        (folder / "maps.py").write_text(_MAPS)
        super().__init__(folder, "maps.py", environ=environ)

    def wait_right(self) -> None:
        """Wait until one more map has ended, which had the right results."""
        assert self.line() == "right"

    def close_descriptors(self) -> None:
        """Have a task beside the map close all descriptors of its worker, on each attempt."""
        self.tell("close")

    def withstand(
        self, rng: random.Random, fail: Callable[[Maps, random.Random], str]
    ) -> list[str]:
        """Have something fail four times, and then end it: all maps are right.

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
        self.end()
        return failed

    def end(self) -> None:
        """Have it end by itself, which goes well."""
        self.end_input()
        while (line := self.line()) != "over":
            assert line == "right"
        assert self.process.wait() == 0
