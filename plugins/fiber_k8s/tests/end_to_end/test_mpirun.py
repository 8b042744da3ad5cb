"""``fiber mpirun`` in pods: an MPI on a claim, members that differ, mpirun beside them, no pod left."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
#: each on a claim of its own
MPIS = ("mpich", "openmpi", "intel")
NODES = ["one", "two"]
# no more than this machine has: an engine refuses a limit of more
CAPACITY = {"cpu": "2", "memory": "16Gi"}


@pytest.fixture(scope="module", autouse=True)
def claims(kube):
    """The MPIs, and the program, on claims."""
    where = kube.volumes.claim_folder
    for name in (*MPIS, "data"):
        kube.create_claim(name)
    for name in MPIS:
        place = where("default", name)
        shutil.copytree(stack(name).folder, place, symlinks=True, dirs_exist_ok=True)
    (where("default", "data") / "program.py").write_text(PROGRAM)


@pytest.fixture
def environ(address, kube, engine):
    """A program outside the cluster that pods reach, and one that they do not."""
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fc-") as folder:
        config = kube.write_kubeconfig(Path(folder, "kubeconfig"), user="default/fiber")
        yield {
            **os.environ,
            **({} if address is None else {"FIBER_K8S_ADDRESS": address}),
            "FIBER_BACKEND": "k8s",
            "FIBER_IMAGE": engine.image,
            "KUBECONFIG": str(config),
            "XDG_RUNTIME_DIR": folder,
        }
    kube.wait_until_gone()


@pytest.fixture
def fiber(environ, tmp_path):
    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "fiber.cli.main", *map(str, words)],
            env=environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return done.returncode, sorted(done.stdout.splitlines()), done.stderr

    return run


def mpirun(fiber, *words, program, mpi="mpich"):
    options = ("--mpirun", "/mpi/bin/mpirun", "-v", f"{mpi}:/mpi", "-v", "data:/data:ro")
    return fiber("mpirun", *options, *words, *stack(mpi).ways(Path("/mpi")), "--", *program)


@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_in_pods_find_each_other(fiber, mpi):
    code, lines, errors = mpirun(
        fiber, "-np", 4, "--slots", 2, program=[PYTHON, "/data/program.py"], mpi=mpi
    )

    assert (code, lines) == (
        0,
        [
            "rank 0 on member-0: 10",
            "rank 1 on member-0: 10",
            "rank 2 on member-1: 10",
            "rank 3 on member-1: 10",
        ],
    ), errors


def test_the_first_member_may_be_in_the_launchers_pod(fiber, kube):
    before = len(kube.history("pods"))
    code, lines, errors = mpirun(
        fiber, "-np", 2, "--launcher-is-member", program=[PYTHON, "/data/program.py"]
    )

    assert (code, lines) == (0, ["rank 0 on member-0: 3", "rank 1 on member-1: 3"]), errors
    assert sum(kind == "ADDED" for kind, _ in kube.history("pods")[before:]) == 2
