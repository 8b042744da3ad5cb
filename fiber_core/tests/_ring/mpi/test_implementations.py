"""MPI implementations are recognised by the output of ``mpirun --version``."""

import pytest

from fiber._ring.mpi.implementations import Family, Stack, recognise
from fiber.exceptions import FiberError

HYDRA = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              cc
"""
INTEL = """Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)
Copyright 2003-2026, Intel Corporation.
"""


@pytest.mark.parametrize(
    "output, stack, name",
    [
        (
            "mpirun (Open MPI) 4.1.4\n\nReport bugs",
            Stack(Family.OPEN_MPI, "4.1.4"),
            "Open MPI 4.1.4",
        ),
        ("mpirun (Open MPI) 3.0.0rc1", Stack(Family.OPEN_MPI, "3.0.0rc1"), "Open MPI 3.0.0rc1"),
        ("mpirun (Open MPI) 5.0.11", Stack(Family.OPEN_MPI_PRRTE, "5.0.11"), "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 10.0.1", Stack(Family.OPEN_MPI_PRRTE, "10.0.1"), "Open MPI 10.0.1"),
        ("mpirun (OpenRTE) 2.1.1", Stack(Family.OPEN_MPI, "2.1.1"), "Open MPI 2.1.1"),
        ("prterun (PRRTE) 3.0.13", Stack(Family.OPEN_MPI_PRRTE, "3.0.13"), "Open MPI 3.0.13"),
        (HYDRA, Stack(Family.MPICH, "5.0.2"), "MPICH 5.0.2"),
        (INTEL, Stack(Family.INTEL, "2021.18.1"), "Intel MPI 2021.18.1"),
    ],
)
def test_each_is_recognised(output, stack, name):
    assert recognise("mpirun", output) == stack
    assert str(stack) == name


@pytest.mark.parametrize("output", ["", "srun: slurm 23.02", "mpirun: command not found"])
def test_unknown_ones_are_refused_with_their_output(output):
    with pytest.raises(
        FiberError, match=r"/opt/mpirun is no mpirun that we know.*--mpirun"
    ) as info:
        recognise("/opt/mpirun", output)

    assert (output or "nothing") in str(info.value)
