"""A barrier in another process than its owner's."""

import pytest

from fiber._objects.sync.wait_queue import Status
from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def waiting(barrier, at, count, has_action=False, timeout=20):
    waits = in_thread(lambda: barrier.arrive(timeout, has_action=has_action))
    until(lambda: at.state() == (False, count))
    return waits


def test_it_opens_when_all_have_arrived(barrier_of, other, third):
    barrier = barrier_of(3)
    theirs, last = other.remote(barrier), third.remote(barrier)
    first, second = waiting(theirs, last, 1), waiting(last, theirs, 2)

    assert barrier.arrive(None, has_action=False) == (Status.OK, 2)
    assert (first(), second()) == ((Status.OK, 0), (Status.OK, 1))


def test_the_last_one_runs_its_action_wherever_it_is(barrier_of, other):
    barrier = barrier_of(2)
    theirs = other.remote(barrier)
    for end, outcome in (
        (theirs.action_succeeded, Status.OK),
        (theirs.action_failed, Status.BROKEN),
    ):
        waits = in_thread(lambda: barrier.arrive(20, has_action=True))
        until(lambda: barrier.state()[1])
        status, number = theirs.arrive(20, has_action=True)
        assert status is Status.RUN_ACTION
        assert end(number) in (outcome, None)
        assert waits()[0] is outcome
    assert theirs.state() == (True, 0)


def test_it_breaks_when_time_is_up(barrier_of, other):
    barrier = barrier_of(3)
    theirs = other.remote(barrier)
    waits = waiting(barrier, theirs, 1)
    assert theirs.arrive(0.01, has_action=False)[0] is Status.BROKEN
    assert waits()[0] is Status.BROKEN
    theirs.reset()
    assert barrier.state() == (False, 0)
    theirs.abort()

    assert barrier.state() == (True, 0)


def test_it_breaks_when_the_one_who_runs_the_action_dies(barrier_of, other):
    barrier = barrier_of(2)
    theirs = other.remote(barrier)
    waits = in_thread(lambda: barrier.arrive(20, has_action=False))
    until(lambda: barrier.state()[1])
    assert theirs.arrive(20, has_action=True)[0] is Status.RUN_ACTION
    other.die()

    assert waits()[0] is Status.BROKEN


def test_an_end_with_a_code_is_a_death(barrier_of, other):
    barrier = barrier_of(2)
    other.remote(barrier)
    other.exit_code = 1
    other.close()

    until(lambda: barrier.state()[0])


def test_waiting_threads_get_an_error_when_the_owner_dies(barrier_of, owner, other):
    barrier = barrier_of(2)
    theirs = other.remote(barrier)
    waits = waiting(theirs, barrier, 1, timeout=None)
    owner.die()

    with pytest.raises(PeerLostError, match="process that this barrier lives in is gone"):
        waits()
