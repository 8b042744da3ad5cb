"""``fiber ring run`` over real hosts: it goes on alone, and leaves no process."""

import pytest

from ring_command import check_failed_rank, check_lifecycle, ring_command
from ssh_programs import LEASE, left_on
from wire_world import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def ring(world, tmp_path):
    settings = {**world.environ(slots=1), "FIBER_BACKEND": "ssh", "FIBER_LEASE": str(LEASE)}
    with ring_command(tmp_path, **settings) as command:
        yield command


def test_it_is_suspended_resumed_and_deleted_from_other_shells(world, ring):
    def ranks():
        # agents stay for as long as their program is connected
        return [job for job in world.jobs() if "sleep 1000" in job]

    def are_gone():
        until(lambda: not ranks())
        return True

    check_lifecycle(ring, "ssh", are_there=lambda: len(ranks()) >= 2, are_gone=are_gone)
    assert left_on(world, LEASE + 20) == []


def test_a_rank_that_fails_ends_it_with_its_code(world, ring):
    check_failed_rank(ring)
    assert left_on(world, LEASE + 20) == []
