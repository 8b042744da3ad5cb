"""Fixtures: a real supervisor, and the journal as a supervisor writes it."""

import os

import pytest

from fiber._agent.supervisor.journal import Journal
from supervised import Supervised


@pytest.fixture
def make(tmp_path):
    """Starts supervisors with other options; all are ended."""
    made = []

    def start(**options):
        made.append(Supervised(tmp_path, **options))
        return made[-1]

    yield start
    for supervised in made:
        supervised.client.close()


@pytest.fixture
def supervised(make):
    """A supervisor with this process as its master."""
    return make()


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
