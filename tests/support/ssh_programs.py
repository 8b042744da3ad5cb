"""Processes of :mod:`ssh_masters` for tests: start, output, end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ssh_masters
from ssh_hosts import SshWorld

__all__ = ["LEASE", "Master", "left_on"]

#: FIBER_LEASE of these programs, in seconds
LEASE = 6.0
_PROGRAM = Path(ssh_masters.__file__)


class Master:
    """A master on this machine that uses the hosts.

    Args:
        world: the hosts.
        words: its arguments.
        cwd: where it runs.
        environ: further settings.
    """

    def __init__(self, world: SshWorld, *words: str, cwd: Path, **environ: str) -> None:
        given = {**world.environ(slots=2), "FIBER_BACKEND": "ssh", "FIBER_LEASE": str(LEASE)}
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *words],
            env={**os.environ, **given, **environ},
            cwd=cwd,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, timeout: float = 60) -> str:
        """The next line of its output."""
        line = self._lines.get(timeout=timeout)
        assert line is not None, f"it ended with {self.process.wait()}"
        return line

    def up(self) -> list[tuple[str, int]]:
        """Hosts and pids of the workers."""
        word, _, rest = self.line().partition(" ")
        assert word == "up"
        return [(host, pid) for host, pid in json.loads(rest)]

    def end(self) -> Any:
        """Its result, once it has ended."""
        found = json.loads(self.line())
        assert self.process.wait(60) == 0
        return found

    def close(self) -> None:
        """Kill it and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def left_on(world: SshWorld, seconds: float) -> list[str]:
    """Processes left on hosts: waits until there is none, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    while (left := world.jobs()) and time.monotonic() < deadline:
        # there is no event for the end of processes that are no children
        time.sleep(0.05)
    return left
