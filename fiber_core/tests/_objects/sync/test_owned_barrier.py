"""A barrier at its owner."""

import pytest

from fiber._objects.sync import owned_waitable
from fiber._objects.sync.wait_queue import Status
from objects_world import in_thread
from wire_world import until


def waiting(barrier, count, has_action=False, timeout=20):
    """A thread that waits at a barrier where it is the given one."""
    waits = in_thread(lambda: barrier.arrive(timeout, has_action=has_action))
    until(lambda: barrier.state()[1] == count)
    return waits


def test_it_opens_when_all_have_arrived(barrier_of):
    barrier = barrier_of(3)
    first, second = waiting(barrier, 1), waiting(barrier, 2)

    assert barrier.arrive(None, has_action=False) == (Status.OK, 2)
    assert (first(), second()) == ((Status.OK, 0), (Status.OK, 1))
    assert barrier.state() == (False, 0)


def test_it_breaks_when_time_is_up(barrier_of):
    barrier = barrier_of(3)
    waits = waiting(barrier, 1)

    assert barrier.arrive(0.01, has_action=False)[0] is Status.BROKEN
    assert waits()[0] is Status.BROKEN
    assert barrier.state() == (True, 0)
    barrier.reset()
    assert barrier.state() == (False, 0)
    barrier.abort()
    assert barrier.arrive(None, has_action=False)[0] is Status.BROKEN


def test_the_action_is_run_while_the_others_wait_though_their_time_be_up(barrier_of):
    barrier = barrier_of(2)
    waits = waiting(barrier, 1, timeout=0.05)
    status, number = barrier.arrive(None, has_action=True)
    assert status is Status.RUN_ACTION
    # its time ends while the action is run
    until(lambda: expired)

    assert barrier.action_succeeded(number) is Status.OK
    assert waits() == (Status.OK, 0)


expired: list[bool] = []


@pytest.fixture(autouse=True)
def _note_expiry(monkeypatch):
    expired.clear()
    cancel = owned_waitable.OwnedWaitable._cancel

    def noted(self, waiter, *, expired: bool = False):
        cancel(self, waiter, expired=expired)
        globals()["expired"].append(expired)

    monkeypatch.setattr(owned_waitable.OwnedWaitable, "_cancel", noted)


def test_it_breaks_where_the_action_fails(barrier_of):
    barrier = barrier_of(2)
    waits = waiting(barrier, 1)
    _, number = barrier.arrive(None, has_action=True)
    barrier.action_failed(number)

    assert waits()[0] is Status.BROKEN
    assert barrier.state()[0]


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("parties", [1, 2])
def test_one_who_is_interrupted_leaves(barrier_of, monkeypatch, parties):
    barrier = barrier_of(parties)

    deliver = barrier.deliver_answers

    def carry_and_interrupt(answers):
        deliver(answers)
        if answers and answers[0].status is Status.RUN_ACTION:
            raise Interrupt

    def no_patience(gate, timeout):
        raise Interrupt

    monkeypatch.setattr(barrier, "deliver_answers", carry_and_interrupt)
    monkeypatch.setattr(owned_waitable, "wait_for_wakeup", no_patience)
    with pytest.raises(Interrupt):
        barrier.arrive(None, has_action=True)

    assert barrier.state() == (parties == 1, 0), "whoever was to run the action has not"


def test_it_breaks_when_a_process_dies_that_has_it(barrier_of, other):
    barrier = barrier_of(3)
    other.remote(barrier)
    waits = waiting(barrier, 1)
    other.die()

    assert waits()[0] is Status.BROKEN


def test_but_not_when_it_ends_normally_or_has_let_go_of_it(barrier_of, other, third):
    barrier = barrier_of(2)
    other.remote(barrier)
    last = third.remote(barrier)
    last.drop(0)
    until(lambda: len(barrier._references.peers(0)) == 1)
    other.close()
    third.die()
    until(lambda: not barrier._references.peers(0))

    assert barrier.state() == (False, 0)
