"""How a rank begins and ends on a member: it says so there, and waits for everybody's place."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fiber._ring.mpi.messages import RankEnded, RankUp

__all__ = ["FOLDER", "MEMBER", "STRAY", "RankDesk", "wrapped"]

#: names the folder of a member, in the environment of its ranks
FOLDER = "FIBER_MPI_DIR"
#: names the member itself
MEMBER = "FIBER_MPI_MEMBER"
#: with which a rank ends that was started on no member
STRAY = 125

_UP = "up"
_GO = "go"

# run by the shell of every member, so that none needs anything installed for it; a rank ends as its
# program does, and is its program's parent so that its end is told whatever mpirun does
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
    """A program as ``mpirun`` is to start it on members."""
    return ("/bin/sh", "-c", _SCRIPT, "fiber-rank", *argv)


class RankDesk:
    """Hears of a member's ranks, and lets them begin.

    Args:
        folder: the member's own.
        tell: called with what is heard.
    """

    def __init__(self, folder: Path, tell: Callable[[RankUp | RankEnded], None]) -> None:
        self._tell = tell
        for name in (_UP, _GO):
            os.mkfifo(folder / name, 0o600)
        # both ways, so that they neither wait for another end nor end with it
        self._up = os.open(folder / _UP, os.O_RDWR)
        self._go = os.open(folder / _GO, os.O_RDWR)
        self._thread = threading.Thread(target=self._listen, name="fiber-ranks", daemon=True)
        self._thread.start()

    def let_go(self, count: int) -> None:
        """So many ranks may begin."""
        # a shell reads one line byte by byte, and leaves the next one to the next
        os.write(self._go, b"\n" * count)

    def close(self) -> None:
        """Hear no more."""
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
                    self._tell(RankUp(rank, number) if what == b"up" else RankEnded(rank, number))
