"""``fiber ring run`` over real hosts: it goes on alone, and leaves nobody there."""

import os
import tempfile

import pytest

from ring_command import RingCommand, fail_by_a_rank, lead_a_life
from ssh_programs import left_on

pytestmark = pytest.mark.timeout(300)

LEASE = 6.0


@pytest.fixture
def ring(world, tmp_path):
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fs-") as runs:
        environ = {
            **os.environ,
            **world.environ(slots=1),
            "FIBER_BACKEND": "ssh",
            "FIBER_LEASE": str(LEASE),
            "XDG_RUNTIME_DIR": runs,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        yield RingCommand(environ)


def test_it_is_suspended_resumed_and_deleted_from_other_shells(world, ring):
    lead_a_life(ring)
    assert left_on(world, LEASE + 20) == []


def test_a_rank_that_fails_ends_it_with_its_code(world, ring):
    fail_by_a_rank(ring)
    assert left_on(world, LEASE + 20) == []
