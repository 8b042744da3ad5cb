"""Programs that run while tests disturb what they run on; one of them maps again and again."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Maps", "Program"]

_MAPS = """
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
_TIMEOUT = 200.0


class Program:
    """A program of Python's, running; its output is read as it comes.

    Args:
        folder: its working directory.
        words: its file and arguments.
        environ: what it has besides the environment of the tests.
    """

    def __init__(self, folder: Path, *words: str, environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="program")
        self._reader.start()

    def line(self) -> str:
        """The next line of its output."""
        try:
            line = self._lines.get(timeout=_TIMEOUT)
        except queue.Empty:
            raise AssertionError("it hangs") from None
        assert line, f"it ended with {self.process.wait()}"
        return line.strip()

    def close(self) -> None:
        """End it, if it has not ended. Idempotent."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Maps(Program):
    """One each of whose maps takes about a second."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        (folder / "maps.py").write_text(_MAPS)
        super().__init__(folder, "maps.py", environ=environ)

    def wait_right(self) -> None:
        """Wait until one more map has ended, which had the right results."""
        assert self.line() == "right"

    def end(self) -> None:
        """Have it end by itself, which goes well."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while (line := self.line()) != "over":
            assert line == "right"
        assert self.process.wait(_TIMEOUT) == 0
