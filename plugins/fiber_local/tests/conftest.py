"""A local backend with a run of its own."""

import secrets

import pytest

from fiber._agent import rundir
from fiber.model import BackendContext
from fiber_local.backend import LocalBackend


@pytest.fixture
def run_id():
    return secrets.token_hex(4)


@pytest.fixture
def context(run_id):
    directory = rundir.create(run_id, "local")
    yield BackendContext(run_id=run_id, run_directory=str(directory))
    rundir.remove(directory)


@pytest.fixture
def opened():
    """Makes backends; all are closed."""
    made = []

    def make(context):
        made.append(LocalBackend(context))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def backend(opened, context):
    return opened(context)
