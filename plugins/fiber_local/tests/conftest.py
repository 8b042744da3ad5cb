"""A local backend with a run of its own."""

import secrets

import pytest

from fiber._agent import rundir
from fiber.model import BackendContext
from fiber_local.backend import LocalBackend
from making import making


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
    with making(LocalBackend, LocalBackend.close) as make:
        yield make
