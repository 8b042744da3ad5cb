"""Guard of a run: a process that outlives its program and empties the queue of a batch system.

Leases end jobs that run. What still waits in a queue when its program is killed has no lease, and
would start hours later for nobody. The guard's standard input is a pipe from the program. When it
ends without a word, the guard runs the commands that it was given and removes the run's folder.

:class:`Guard` starts this same file, which imports the standard library alone, as a program.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    # for type checkers alone: this program must start fast
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Guard", "main"]

_KEEP, _BYE = b"keep\n", b"bye\n"


class Guard:
    """The guard of this program's run; thread-safe.

    Args:
        commands: what ends all jobs of the run, each an argv; they may be run several times.
        folder: removed after them, unless :meth:`keep` was called.
        pause: seconds before the last command.
        retry: seconds until commands of which one failed are run again.
        patience: seconds after which that is given up.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        folder: Path,
        *,
        pause: float,
        retry: float,
        patience: float,
    ) -> None:
        self._orders = {
            "commands": [list(argv) for argv in commands],
            "folder": str(folder),
            "pause": pause,
            "retry": retry,
            "patience": patience,
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def start(self) -> None:
        """Start the process. Idempotent."""
        with self._lock:
            if self._process is not None:
                return
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # neither Ctrl-C nor the end of the terminal is meant for it
                start_new_session=True,
                cwd="/",
            )
            self._say(json.dumps(self._orders).encode() + b"\n")

    def keep(self) -> None:
        """Tell the guard to keep the folder, which a job needs that outlives the program."""
        self.start()
        with self._lock:
            self._say(_KEEP)

    def dismiss(self) -> None:
        """End it without a command, since nothing of the run is left. Idempotent."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or os.getpid() != self._owner:
                return
            self._say(_BYE)
            # it may have been killed, and the pipe is broken
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()

    def leave(self) -> None:
        """Make the guard run its commands, as after the end of this program, and do not wait."""
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None and os.getpid() == self._owner:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    def _say(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # one that was killed guards nothing: the jobs' leases are left
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


def main() -> int:
    """Wait for the end of the program; run the commands if it did not say goodbye."""
    orders = json.loads(sys.stdin.buffer.readline() or b"null")
    keep = False
    for line in sys.stdin.buffer:
        if line == _BYE:
            return 0
        keep = keep or line == _KEEP
    if orders is None:
        return 0
    until = time.monotonic() + orders["patience"]
    while not _run(orders["commands"], orders["pause"]):
        if time.monotonic() > until:
            return 1
        time.sleep(orders["retry"])
    if not keep:
        shutil.rmtree(orders["folder"], ignore_errors=True)
    return 0


def _run(commands: Sequence[Sequence[str]], pause: float) -> bool:
    """Run the commands one after the other; whether all ended well."""
    well = True
    for number, argv in enumerate(commands):
        if number and number == len(commands) - 1:
            time.sleep(pause)
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            well = False
        else:
            well = well and done.returncode == 0
    return well


if __name__ == "__main__":
    sys.exit(main())
