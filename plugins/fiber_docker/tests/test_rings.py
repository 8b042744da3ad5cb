"""Rings whose members are containers: after one is killed, all start again or none does."""

import contextlib
import time

import pytest

import fiber
from fiber._runtime import runtime
from fiber.experimental import ConditionKind, Ring, RingError, current_ring

pytestmark = pytest.mark.timeout(200)

#: seconds within which a ring has ended that lost a member
BOUND = 60.0


@pytest.fixture(autouse=True)
def _master(engine):
    fiber.init(backend="docker", image=engine.image, docker_host=engine.url)
    yield
    current = runtime.started()
    if current is not None:
        current.close()
    fiber.init()
    assert engine.left(30.0) == []


def last(rank, size):
    """Run until killed; after all were started again, return what was committed."""
    ring = current_ring()
    if ring.restarts == 0:
        ring.commit(f"of {rank}", step=rank + 1)
        time.sleep(600)
    return ring.state, ring.step, ring.restarts


def kill_rank(engine, ring, rank):
    """Kill the container of a rank of a running ring, as an operator does."""
    ring.start()
    assert ring.wait_for(lambda status: status.has(ConditionKind.RUNNING), 120)
    # what members commit first takes a moment
    time.sleep(0.5)
    (found,) = engine.listed(f"fiber.name={ring.name}.{rank}")
    with contextlib.closing(engine.docker()) as client:
        client.api.kill(found["Id"])


def test_a_member_whose_container_is_killed_ends_the_ring_and_is_named(engine):
    ring = Ring(2, last, heartbeat=10.0)
    kill_rank(engine, ring, 1)

    began = time.monotonic()
    with pytest.raises(RingError, match=r"rank 1 on .*SIGNAL\(9\)"):
        ring.join(BOUND)
    assert time.monotonic() - began < BOUND


def test_all_members_start_again_from_what_a_surviving_one_knew(engine):
    ring = Ring(2, last, max_restarts=1, heartbeat=10.0)
    kill_rank(engine, ring, 0)

    assert ring.join(BOUND) == [("of 1", 2, 1)] * 2
