"""Clusters for the tests of the emulator itself."""

import pytest

from cluster import Act, Cluster
from cluster.replay import RECORDINGS, lines_of


@pytest.fixture
def recorded():
    """The lines of a recording, by its name."""
    if not RECORDINGS.is_dir():
        pytest.skip(f"no recordings of a real cluster in {RECORDINGS}")
    return lines_of


def recorded_script(pod):
    """Scripts of the programs in the recordings, as far as a hollow pod can follow them."""
    command = pod["spec"]["containers"][0].get("command") or ["true"]
    program = command[-1]
    if command == ["true"] or "print('hello')" in program:
        return Act(code=0, log="hello\n" if "hello" in program else "")
    if "signal.signal" in program:
        return Act(on_term=0)
    return Act(on_term=None)


@pytest.fixture
def cluster():
    """A cluster of one node, with the scripts of the recordings."""
    with Cluster.start(script=recorded_script) as cluster:
        yield cluster
