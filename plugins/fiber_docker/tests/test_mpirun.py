"""``fiber mpirun`` in containers: an MPI from a volume, ranks on members, no container left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

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
    mpi = Path(stack("mpich").mpirun).parents[1].resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fc-") as runs:

        def run(*program):
            words = ["mpirun", "-np", "4", "--slots", "2", "--mpirun", mpi / "bin" / "mpiexec"]
            words += ["-v", f"{mpi}:{mpi}", "-v", f"{tmp_path}:/data"]
            words += ["-genv", "PYTHONPATH", mpi / "lib" / version / "site-packages"]
            words += ["-genv", "LD_LIBRARY_PATH", mpi / "lib", "--", *program]
            done = subprocess.run(
                [sys.executable, "-m", "fiber.cli.main", *map(str, words)],
                env={
                    **os.environ,
                    "FIBER_BACKEND": "docker",
                    "FIBER_IMAGE": engine.image,
                    "DOCKER_HOST": engine.url,
                    "XDG_RUNTIME_DIR": runs,
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            return done.returncode, sorted(done.stdout.splitlines()), done.stderr

        yield run


def test_ranks_in_containers_find_each_other(engine, mpirun):
    code, lines, errors = mpirun("python3", "/data/program.py")

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
    code, _, errors = mpirun("sh", "-c", 'exit "$PMI_RANK"')

    assert code in (1, 2, 3), errors
    assert "fiber: rank" in errors
    assert engine.containers() == []
