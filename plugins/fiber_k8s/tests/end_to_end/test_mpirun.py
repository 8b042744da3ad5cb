"""``fiber mpirun`` in pods: an MPI on a claim, members that differ, mpirun beside them, no pod left."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import mpi_ranks
from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

#: the image's: beside an mpirun there may be another one
PYTHON = "/usr/local/bin/python3"
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
    (where("default", "data") / "program.py").write_text(mpi_ranks.PROGRAM)


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
def mpirun(environ, tmp_path):
    def run(*words, mpi="mpich"):
        options = ("--mpirun", "/mpi/bin/mpirun", "-v", f"{mpi}:/mpi", "-v", "data:/data:ro")
        ways = (*stack(mpi).ways(Path("/mpi")), "--", PYTHON, "/data/program.py")
        return mpi_ranks.mpirun(tmp_path, *options, *words, *ways, environ=environ)

    return run


@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_in_pods_find_each_other(mpirun, mpi):
    mpi_ranks.check_meeting(mpirun(mpi=mpi))


def test_the_first_member_may_be_in_the_launchers_pod(mpirun, kube):
    before = len(kube.history("pods"))
    mpi_ranks.check_meeting(mpirun("--launcher-is-member"))
    assert sum(kind == "ADDED" for kind, _ in kube.history("pods")[before:]) == 2
