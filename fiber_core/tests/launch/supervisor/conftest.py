"""A real supervisor for tests of what it does."""

import pytest

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
