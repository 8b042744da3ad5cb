"""``fiber mpirun`` in pods: an MPI and the program on claims, ranks on members, no pod left."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from mpi_ranks import check_meeting, mpirun
from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

#: the image's: beside an mpirun there may be another one
PYTHON = "/usr/local/bin/python3"
NODES = ["one", "two"]
# no more than this machine has: an engine refuses a limit of more
CAPACITY = {"cpu": "2", "memory": "16Gi"}


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


@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "intel"])
def test_ranks_in_pods_find_each_other(environ, kube, mpi):
    for claim in (mpi, "data"):
        if kube.get("persistentvolumeclaims", claim) is None:
            kube.create_claim(claim)
    found, data = (kube.volumes.claim_folder("default", claim) for claim in (mpi, "data"))
    if not (found / "bin").exists():
        shutil.copytree(stack(mpi).folder, found, symlinks=True, dirs_exist_ok=True)
    words = ("--mpirun", "/mpi/bin/mpirun", "-v", f"{mpi}:/mpi", "-v", "data:/data:ro")
    program = (*stack(mpi).ways(Path("/mpi")), "--", PYTHON, "/data/program.py")

    check_meeting(mpirun(data, *words, *program, environ=environ))
