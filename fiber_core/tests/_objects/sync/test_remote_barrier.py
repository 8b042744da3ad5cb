"""A barrier in another process than its owner's."""

import pytest

from fiber._objects.sync.wait_queue import Verdict
from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def waiting(barrier, at, count, acts=False, timeout=20):
    waits = in_thread(lambda: barrier.arrive(timeout, acts=acts))
    until(lambda: at.state() == (False, count))
    return waits


def test_it_opens_when_all_are_there(barrier_of, other, third):
    barrier = barrier_of(3)
    theirs, last = other.remote(barrier), third.remote(barrier)
    first, second = waiting(theirs, last, 1), waiting(last, theirs, 2)

    assert barrier.arrive(None, acts=False) == (Verdict.YES, 2)
    assert (first(), second()) == ((Verdict.YES, 0), (Verdict.YES, 1))


def test_the_last_one_runs_its_action_wherever_it_is(barrier_of, other):
    barrier = barrier_of(2)
    theirs = other.remote(barrier)
    for end, outcome in ((theirs.ran, Verdict.YES), (theirs.failed, Verdict.BROKEN)):
        waits = in_thread(lambda: barrier.arrive(20, acts=True))
        until(lambda: barrier.state()[1])
        verdict, number = theirs.arrive(20, acts=True)
        assert verdict is Verdict.RUN
        assert end(number) in (outcome, None)
        assert waits()[0] is outcome
    assert theirs.state() == (True, 0)


def test_it_breaks_when_time_is_up(barrier_of, other):
    barrier = barrier_of(3)
    theirs = other.remote(barrier)
    waits = waiting(barrier, theirs, 1)
    assert theirs.arrive(0.01, acts=False)[0] is Verdict.BROKEN
    assert waits()[0] is Verdict.BROKEN
    theirs.reset()
    assert barrier.state() == (False, 0)
    theirs.abort()

    assert barrier.state() == (True, 0)


def test_it_breaks_when_the_one_who_runs_the_action_dies(barrier_of, other):
    barrier = barrier_of(2)
    theirs = other.remote(barrier)
    waits = in_thread(lambda: barrier.arrive(20, acts=False))
    until(lambda: barrier.state()[1])
    assert theirs.arrive(20, acts=True)[0] is Verdict.RUN
    other.die()

    assert waits()[0] is Verdict.BROKEN


def test_an_end_with_a_code_is_a_death(barrier_of, other):
    barrier = barrier_of(2)
    other.remote(barrier)
    other.exit_code = 1
    other.close()

    until(lambda: barrier.state()[0])


def test_those_who_wait_hear_of_the_owners_death(barrier_of, owner, other):
    barrier = barrier_of(2)
    theirs = other.remote(barrier)
    waits = waiting(theirs, barrier, 1, timeout=None)
    owner.die()

    with pytest.raises(PeerLostError, match="process that this barrier lives in is gone"):
        waits()
