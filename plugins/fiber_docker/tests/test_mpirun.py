"""``fiber mpirun`` in containers: an MPI from a volume, ranks on members, no container left."""

import tempfile

import pytest

from mpi_ranks import check_meeting, mpirun
from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

#: the image's: beside an mpirun there may be another one
PYTHON = "/usr/local/bin/python3"


@pytest.mark.parametrize("name", ["mpich", "openmpi", "intel"])
def test_ranks_in_containers_find_each_other(engine, tmp_path, name):
    mpi = stack(name)
    words = ["--mpirun", mpi.folder / "bin" / "mpirun", "-v", f"{mpi.folder}:{mpi.folder}"]
    words += ["-v", f"{tmp_path}:/data", *mpi.ways(mpi.folder), "--", PYTHON, "/data/program.py"]
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fc-") as runs:
        check_meeting(mpirun(tmp_path, *words, environ=engine.environ(XDG_RUNTIME_DIR=runs)))

    assert engine.containers() == []
