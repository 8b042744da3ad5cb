"""``fiber mpirun`` over real hosts: no login of ours there, ranks on members, pairs that cannot meet."""

import os

import pytest

from mpi_ranks import check_meeting, mpirun
from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]


@pytest.fixture
def run(world, tmp_path):
    # a launcher and two members, each on a host of its own
    environ = {**os.environ, **world.environ(slots=1), "FIBER_BACKEND": "ssh"}

    def start(name):
        mpi = stack(name)
        words = ["--mpirun", mpi.mpirun, "--", mpi.python, tmp_path / "program.py"]
        return mpirun(tmp_path, *words, environ=environ)

    return start


@pytest.mark.parametrize("name", ["debian", "mpich"])
def test_ranks_of_several_hosts_find_each_other(run, name):
    check_meeting(run(name))


def test_hosts_that_cannot_meet_are_named_before_the_program_runs(world, run):
    _, beta, gamma = world.hosts
    beta.refuse_outgoing(to=gamma.address)
    try:
        done = run("debian")
    finally:
        beta.allow_outgoing()

    assert (done.returncode, done.stdout) == (1, "")
    assert "(beta) cannot reach" in done.stderr
    assert gamma.address in done.stderr
