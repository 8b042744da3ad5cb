"""``fiber mpirun`` of a program whose ranks find each other, for any backend."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from commands import ran

PROGRAM = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
# whole: print writes the end of its line by itself, and mpirun mixes what ranks write
os.write(1, f"rank {world.rank} on {os.environ['FIBER_MPI_MEMBER']}: {total}\\n".encode())
"""


def mpirun(
    folder: Path, *words: object, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command with ``program.py`` in a folder and four ranks on two members."""
    (folder / "program.py").write_text(PROGRAM)
    command = ["mpirun", "-np", "4", "--slots", "2", *map(str, words)]
    return ran(
        [sys.executable, "-m", "fiber.cli.main", *command],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
    )


def check_meeting(done: subprocess.CompletedProcess[str]) -> None:
    """Every rank was on its member, and had the sum of all."""
    found = [f"rank {rank} on member-{rank // 2}: 10" for rank in range(4)]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, found), done.stderr
