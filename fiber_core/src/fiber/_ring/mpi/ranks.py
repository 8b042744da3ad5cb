"""Start barrier of the ranks: each reports to its member and waits until all are where they belong.

A shell around each rank reports through one FIFO in the member's folder, and waits for a line from
another one. It also reports the exit code, whatever mpirun does with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fiber._ring.mpi.messages import RankEnded, RankUp

__all__ = ["FOLDER", "MEMBER", "STRAY", "RankRegistry", "wrapped"]

#: environment variable of ranks with the folder of their member
FOLDER = "FIBER_MPI_DIR"
#: environment variable of ranks with the name of their member
MEMBER = "FIBER_MPI_MEMBER"
#: exit code of a rank that was not started on a member
STRAY = 125

_UP = "up"
_GO = "go"

# for any POSIX shell, so that members need nothing installed; exits with the program's exit code,
# and is the program's parent, so that its end is reported whatever mpirun does
_SCRIPT = f"""
rank=${{OMPI_COMM_WORLD_RANK:-${{PMIX_RANK:-${{PMI_RANK:-}}}}}}
if [ -z "${FOLDER}" ]; then
    echo "fiber: rank $rank was started on $(hostname), which is no member of this run" >&2
    exit {STRAY}
fi
echo "up $rank $$" >"${FOLDER}/{_UP}" && read -r go <"${FOLDER}/{_GO}" || exit {STRAY}
"$@"
code=$?
echo "ended $rank $code" >"${FOLDER}/{_UP}"
exit $code
"""


def wrapped(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that ``mpirun`` starts on members for a program."""
    return ("/bin/sh", "-c", _SCRIPT, "fiber-rank", *argv)


class RankRegistry:
    """Registry of the ranks on a member: reports their start and end, and releases them.

    Args:
        folder: folder of the member, for the FIFOs.
        report: called with each report, on the registry's thread.
    """

    def __init__(self, folder: Path, report: Callable[[RankUp | RankEnded], None]) -> None:
        self._report = report
        for name in (_UP, _GO):
            os.mkfifo(folder / name, 0o600)
        # opened for reading and writing, so that they neither block nor end with their peers
        self._up = os.open(folder / _UP, os.O_RDWR)
        self._go = os.open(folder / _GO, os.O_RDWR)
        self._thread = threading.Thread(target=self._listen, name="fiber-ranks", daemon=True)
        self._thread.start()

    def release(self, count: int) -> None:
        """Release a number of ranks."""
        # a shell reads its line byte by byte, and leaves the others' lines
        os.write(self._go, b"\n" * count)

    def close(self) -> None:
        """Stop the registry's thread and close the FIFOs."""
        os.write(self._up, b"over\n")
        self._thread.join()
        os.close(self._up)
        os.close(self._go)

    def _listen(self) -> None:
        with open(self._up, "rb", closefd=False) as lines:
            for line in lines:
                words = line.split()
                if words == [b"over"]:
                    return
                with contextlib.suppress(ValueError, IndexError):
                    what, rank, number = words[0], int(words[1]), int(words[2])
                    self._report(RankUp(rank, number) if what == b"up" else RankEnded(rank, number))
