"""``fiber mpirun`` over real hosts: no login of ours there, ranks on members, pairs that cannot meet."""

import os
import subprocess
import sys

import pytest

from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]

PROGRAM = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
os.write(1, f"rank {world.rank} on {os.environ['FIBER_MPI_MEMBER']}: {total}\\n".encode())
"""


@pytest.fixture
def mpirun(world, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    # a launcher and two members, each on a host of its own
    settings = {**world.environ(slots=1), "FIBER_BACKEND": "ssh"}

    def run(mpi):
        words = ["mpirun", "-np", "4", "--slots", "2", "--mpirun", mpi.mpirun, "--"]
        done = subprocess.run(
            [sys.executable, "-m", "fiber.cli.main", *words, mpi.python, tmp_path / "program.py"],
            env={**os.environ, **settings},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        return done.returncode, sorted(done.stdout.splitlines()), done.stderr

    return run


@pytest.mark.parametrize("name", ["debian", "mpich"])
def test_ranks_of_several_hosts_find_each_other(world, mpirun, name):
    code, lines, errors = mpirun(stack(name))

    assert (code, lines) == (
        0,
        [
            "rank 0 on member-0: 10",
            "rank 1 on member-0: 10",
            "rank 2 on member-1: 10",
            "rank 3 on member-1: 10",
        ],
    ), errors


def test_hosts_that_cannot_meet_are_named_before_the_program_runs(world, mpirun):
    hosts = {host.name: host for host in world.hosts}
    hosts["beta"].refuse_outgoing(to=hosts["gamma"].address)
    try:
        code, lines, errors = mpirun(stack("debian"))
    finally:
        hosts["beta"].allow_outgoing()

    assert (code, lines) == (1, [])
    assert "(on beta) cannot reach" in errors
    assert f"{hosts['gamma'].address}" in errors
