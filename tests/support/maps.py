"""A program that maps again and again on some backend, for tests that kill what it runs on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Maps"]

_PROGRAM = """
import sys, threading, time
import fiber

def square(number):
    time.sleep(0.02)
    return number * number

def main():
    want = [number * number for number in range(150)]
    asked = threading.Thread(target=sys.stdin.read, daemon=True)
    asked.start()
    with fiber.Pool(3) as pool:
        while asked.is_alive():
            found = pool.map(square, range(150), chunksize=1)
            print("right" if found == want else f"wrong: {found}", flush=True)
        pool.close()
        pool.join()
    print("over", flush=True)

if __name__ == "__main__":
    main()
"""


class Maps:
    """The program, running; each of its maps takes about a second. A test's own timeout ends waits.

    Args:
        folder: its working directory.
        environ: what it has besides the environment of the tests.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        (folder / "maps.py").write_text(_PROGRAM)
        self._process = subprocess.Popen(
            [sys.executable, "maps.py"],
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_right(self) -> None:
        """Wait until one more map has ended, which had the right results."""
        assert self._line() == "right"

    def end(self) -> None:
        """Have it end by itself, which goes well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while (line := self._line()) != "over":
            assert line == "right"
        assert self._process.wait() == 0

    def close(self) -> None:
        """End it, if it has not ended. Idempotent."""
        self._process.kill()
        with self._process:
            pass

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        return line or f"it ended with {self._process.wait()}"
