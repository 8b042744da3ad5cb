"""``fiber ring run`` in containers: it goes on alone, and ends with its owner."""

import pytest

from ring_command import check_failed_rank, check_lifecycle, kill_owner, ring_command

pytestmark = pytest.mark.timeout(300)

LEASE = 6.0


@pytest.fixture
def ring(engine, tmp_path):
    with ring_command(tmp_path, **engine.environ(FIBER_LEASE=str(LEASE))) as command:
        yield command


def test_it_is_suspended_resumed_and_deleted_from_other_shells(engine, ring):
    check_lifecycle(
        ring,
        "docker",
        are_there=lambda: len(engine.containers()) == 2,
        are_gone=lambda: engine.left(20) == [],
    )


def test_a_rank_that_fails_ends_it_with_its_code(engine, ring):
    check_failed_rank(ring)
    assert engine.left(20) == []


def test_it_ends_within_the_lease_when_its_owner_is_killed(engine, ring, tmp_path):
    ring("run", "-d", "-n", "2", "--name", "r", "sleep", "1000")

    kill_owner(ring, tmp_path / "state")

    assert engine.left(LEASE + 20) == []
    ring("delete", "r")
