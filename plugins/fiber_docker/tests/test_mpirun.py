"""``fiber mpirun`` in containers: an MPI from a volume, ranks on members, no container left."""

import subprocess
import sys
import tempfile

import pytest

from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

#: the image's: beside an mpirun there may be another one
PYTHON = "/usr/local/bin/python3"
PROGRAM = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
os.write(1, f"rank {world.rank} on {os.environ['FIBER_MPI_MEMBER']}: {total}\\n".encode())
"""


@pytest.fixture
def mpirun(engine, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fc-") as runs:

        def run(mpi, *program):
            folder = mpi.folder
            words = ["mpirun", "-np", "4", "--slots", "2", "--mpirun", folder / "bin" / "mpirun"]
            words += ["-v", f"{folder}:{folder}", "-v", f"{tmp_path}:/data"]
            words += [*mpi.ways(folder), "--", *program]
            done = subprocess.run(
                [sys.executable, "-m", "fiber.cli.main", *map(str, words)],
                env=engine.environ(XDG_RUNTIME_DIR=runs),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            return done.returncode, sorted(done.stdout.splitlines()), done.stderr

        yield run


@pytest.mark.parametrize("name", ["mpich", "openmpi", "intel"])
def test_ranks_in_containers_find_each_other(engine, mpirun, name):
    code, lines, errors = mpirun(stack(name), PYTHON, "/data/program.py")

    assert (code, lines) == (
        0,
        [
            "rank 0 on member-0: 10",
            "rank 1 on member-0: 10",
            "rank 2 on member-1: 10",
            "rank 3 on member-1: 10",
        ],
    ), errors
    assert engine.containers() == []


def test_a_rank_that_fails_is_named_and_no_container_is_left(engine, mpirun):
    code, _, errors = mpirun(stack("mpich"), "sh", "-c", 'exit "$PMI_RANK"')

    assert code in (1, 2, 3), errors
    assert "fiber: rank" in errors
    assert engine.containers() == []
