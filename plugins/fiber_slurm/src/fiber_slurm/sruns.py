"""Program that ends the steps of a run, and those ``srun`` of this host that wait for a place.

A step that waits is known to nobody but its ``srun``: Slurm lists it once it has a place. Processes
are found by their arguments, which have the step's name, so that any program of this user can end them;
the guard of a run does when its program was killed. Arguments: the name of a run's jobs, and a signal.

It runs under any Python, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    # for type checkers alone: this program must start fast
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["end_waiting", "main", "waiting"]

_NAME = b"--job-name="
_SQUEUE = ("squeue", "--local", "--steps", "--noheader", "--Format=StepID:\x1f,StepName:\x1f")


def waiting(is_wanted: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Process id and step's name of each ``srun`` of this user here whose step is wanted."""
    own = os.getuid()
    # without Linux there are none
    for process in Path("/proc").glob("[0-9]*"):
        # they end meanwhile
        with contextlib.suppress(OSError):
            pid = int(process.name)
            # an srun has a child, which is no leader of the session that it was started in
            if process.stat().st_uid != own or os.getsid(pid) != pid:
                continue
            program, *words = (process / "cmdline").read_bytes().split(b"\0")
            if program.rpartition(b"/")[2] != b"srun":
                continue
            named = next((word for word in words if word.startswith(_NAME)), b"")
            name = named[len(_NAME) :].decode("utf-8", "replace")
            if name and is_wanted(name):
                yield pid, name


def end_waiting(is_wanted: Callable[[str], bool]) -> int:
    """SIGTERM to those, by which they leave without a step; returns how many there were."""
    count = 0
    for pid, _ in waiting(is_wanted):
        # at once after it was looked at: the id is nobody else's yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            count += 1
    return count


def main(words: Sequence[str]) -> int:
    """End what is there; 1 where something was, so that whoever called looks again."""
    name, signum = words
    listed = subprocess.run(
        [*_SQUEUE, f"--user={os.getuid()}"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        return 1
    rows = [line.split("\x1f") for line in listed.stdout.splitlines()]
    placed = {row[1].strip(): row[0].strip() for row in rows if row[1:]}
    numbers = [number for step, number in placed.items() if step.startswith(name + ".")]
    ended = end_waiting(lambda step: step.startswith(name + ".") and step not in placed)
    if numbers:
        # its exit code is of no use: of a step that got the signal it tells an old errno
        subprocess.run(["scancel", f"--signal={signum}", *numbers], check=False)
    return 1 if signum == "KILL" and (numbers or ended) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
