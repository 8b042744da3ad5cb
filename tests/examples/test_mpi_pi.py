"""The example of MPI runs on jobs, by the MPI of the system."""

import sys
from pathlib import Path

import pytest

from commands import ran
from mpi_stacks import stack

EXAMPLE = Path(__file__).parents[2] / "examples" / "mpi_pi.py"

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


def test_ranks_compute_pi(tmp_path):
    python = stack("debian").python
    words = ["mpirun", "-np", "4", "--slots", "2", "--", python, EXAMPLE]

    done = ran([sys.executable, "-m", "fiber.cli.main", *words], cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "4 ranks on " in done.stdout
    assert "pi is 3.14159265359" in done.stdout
