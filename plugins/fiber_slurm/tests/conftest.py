"""A Slurm cluster, made once for all tests, and backends that use it."""

import secrets

import attrs
import pytest

from fiber._agent import rundir
from fiber.model import BackendContext
from fiber_slurm.backend import SlurmBackend
from fiber_slurm.config import SlurmConfig
from making import making
from slurm_cluster import slurm_cluster


@pytest.fixture(scope="session")
def cluster():
    with slurm_cluster() as made, pytest.MonkeyPatch.context() as environ:
        for name, value in made.environ.items():
            environ.setenv(name, value)
        yield made


@pytest.fixture
def folder(cluster):
    """Folder of jobs' files, which all nodes see."""
    return cluster.shared


@pytest.fixture
def runs(folder):
    """Folder of the runs on this cluster."""
    return folder / "slurm" / "fiber"


@pytest.fixture
def slurm_config(folder):
    return SlurmConfig(folder=folder, address="127.0.0.1")


@pytest.fixture
def environ(cluster):
    """Variables by which a program uses the cluster."""
    return cluster.program_environ


@pytest.fixture
def run_id():
    return secrets.token_hex(4)


@pytest.fixture
def context(run_id, slurm_config):
    directory = rundir.create(run_id, "slurm")
    yield BackendContext(run_id=run_id, run_directory=str(directory), config=slurm_config)
    rundir.remove(directory)


@pytest.fixture
def opened():
    """Makes backends; all are closed."""

    def make(context, **changes):
        return SlurmBackend(attrs.evolve(context, **changes))

    with making(make, SlurmBackend.close) as opened:
        yield opened
