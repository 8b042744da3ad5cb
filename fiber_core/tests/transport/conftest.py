"""Endpoints that listen where a test wants them, and are gone when it is over."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from transport_world import Listening


@pytest.fixture
def folder():
    """A folder with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="ft-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["ipc", "tls+tcp"])
def scheme(request):
    return request.param


@pytest.fixture
def listen(folder):
    """Opens endpoints, by default at ipc; all are closed in the end."""
    opened = []

    def listen(scheme="ipc", **options):
        opened.append(Listening(scheme, folder, **options))
        return opened[-1]

    yield listen
    for one in opened:
        one.close()


@pytest.fixture
def listening(scheme, listen):
    """One endpoint on each kind of connection."""
    return listen(scheme)
