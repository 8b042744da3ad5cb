"""Fixtures: real supervisors, a journal as a supervisor writes it, and a loop for parts of one."""

import functools
import os

import pytest

from fiber._agent.supervisor.journal import Journal
from fiber._base.threads import Loop
from fiber._wire.descriptors import Descriptors
from making import making
from supervised import Supervised


@pytest.fixture
def make(tmp_path):
    """Starts supervisors with other options; all are ended."""
    start = functools.partial(Supervised, tmp_path)
    with making(start, lambda supervised: supervised.client.close()) as make:
        yield make


@pytest.fixture
def own(make):
    """A supervisor that the test may end."""
    return make()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Supervised(tmp_path_factory.mktemp("run")) as supervised:
        # it is there before the first test is
        supervised.settle()
        yield supervised


@pytest.fixture
def supervised(shared):
    """A supervisor with this process as its master, which other tests of the module use too."""
    yield shared
    shared.end_jobs()


@pytest.fixture
def failures():
    """Errors of the journal."""
    return []


@pytest.fixture
def journal(tmp_path, failures):
    """An open journal in an empty folder."""
    journal = Journal(str(tmp_path), failures.append)
    descriptor = journal.open()
    yield journal
    os.close(descriptor)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def loop(clock):
    loop = Loop(clock)
    yield loop
    loop.close()


@pytest.fixture
def ticking(loop):
    """A loop none of whose turns waits: a timer is always due."""

    def tick():
        loop.call_later(0, tick)

    tick()
    return loop


@pytest.fixture
def owned():
    owned = Descriptors()
    yield owned
    owned.close_all()
