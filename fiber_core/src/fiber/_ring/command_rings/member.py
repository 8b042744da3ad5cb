"""What a member of ``fiber ring run`` does: it runs a command, whose lines go to who began the ring."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import Any

from fiber._base import values

__all__ = ["Finished", "Line", "Work"]


@values.frozen
class Line:
    """A line that a rank's command wrote."""

    rank: int
    host: str
    text: str


@values.frozen
class Finished:
    """A rank's command has ended."""

    rank: int
    host: str
    #: exit code, or minus the signal
    code: int


@values.frozen
class Work:
    """A command for every rank; the environment says which one it is."""

    #: program and arguments
    argv: tuple[str, ...]
    #: where lines and ends are told
    queue: Any

    def __call__(self, rank: int, size: int) -> None:
        """Run it, and end this process as it ended."""
        host = socket.gethostname()
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
        }
        # it is of the job's own group, and ends with the job however that ends
        with subprocess.Popen(
            self.argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            with contextlib.suppress(ValueError):
                # a ring that is ended or restarted ends its commands
                signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            assert process.stdout is not None
            for line in process.stdout:
                self.queue.put(Line(rank, host, line.rstrip("\n")))
        self.queue.put(Finished(rank, host, process.returncode))
        if process.returncode:
            code = process.returncode
            raise SystemExit(128 - code if code < 0 else code)
