"""Barriers: they open when all parties wait, and break for all that do."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync import waitable
from fiber._objects.sync.barrier import BarrierState, OwnedBarrier
from fiber._objects.sync.protocol import Request, Status
from wire_world import in_thread, until


def outcomes(answers):
    return [(one.request.process, one.status, one.value) for one in answers]


def arrive(barrier, process, number=0, *, has_action=False):
    return outcomes(barrier.arrive(Request(process, number), has_action=has_action))


def broken(*parties):
    return [(process, Status.BROKEN, 0) for process in parties]


def opened(*parties):
    return [(process, Status.OK, place) for place, process in enumerate(parties)]


def acting():
    """A barrier at which a waits while b runs its action."""
    barrier = BarrierState(2)
    arrive(barrier, "a")
    arrive(barrier, "b", has_action=True)
    return barrier


@pytest.mark.parametrize("end", ["abort", "reset"])
def test_an_action_that_ends_after_the_barrier_was_broken_opens_nothing(end):
    barrier = acting()
    assert outcomes(getattr(barrier, end)()) == broken("a")

    assert barrier.action_ended("b", 1, succeeded=True) == (Status.BROKEN, [])
    assert barrier.is_broken == (end == "abort")
    assert barrier.action_ended("b", 0, succeeded=True) == (Status.BROKEN, [])


def test_those_who_come_during_the_action_are_let_in_afterwards():
    barrier = acting()
    assert arrive(barrier, "c") == []
    assert arrive(barrier, "d") == []

    _, answers = barrier.action_ended("b", 1, succeeded=True)
    assert outcomes(answers) == opened("a") + opened("c", "d")


def test_one_that_comes_during_the_action_and_waits_too_long_breaks_the_next_round():
    barrier = acting()
    arrive(barrier, "c", 1)
    assert outcomes(barrier.cancel("c", 1, expired=True)) == broken("c")

    assert outcomes(barrier.action_ended("b", 1, succeeded=True)[1]) == opened("a")
    assert barrier.is_broken


def test_it_breaks_when_a_process_dies_that_waits_or_may_be_waited_for():
    for dead in "ac":
        barrier = BarrierState(3)
        arrive(barrier, "a")
        arrive(barrier, "b")
        alive = [process for process in "ab" if process != dead]
        assert outcomes(barrier.process_died(dead, "")) == broken(*alive)
        assert barrier.is_broken
    # also when it runs the action
    assert outcomes(acting().process_died("b", "")) == broken("a")


def test_a_normal_end_breaks_nothing_but_what_it_was_doing():
    barrier = BarrierState(3)
    arrive(barrier, "a")
    arrive(barrier, "b")
    assert barrier.process_exited("a", 0) == []
    assert barrier.process_died("a", "") == [], "that its connection ends is no news"
    assert barrier.waiting == 1
    assert barrier._exited == set(), "nobody is remembered for longer"

    assert outcomes(acting().process_exited("b", 0)) == broken("a")


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive"] * 4 + ["acts", "ran", "fail", "expire", "cancel"])
        | st.sampled_from(["reset", "abort", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@pytest.mark.timeout(600)
@given(EVENTS, st.integers(1, 3))
def test_whatever_happens_each_request_is_answered_once_and_never_in_vain(events, parties):
    barrier = BarrierState(parties)
    waiting: set[tuple[object, int]] = set()
    running = None

    def heard(answers):
        nonlocal running
        for one in answers:
            waiting.remove((one.request.process, one.request.number))
            if one.status is Status.RUN_ACTION:
                assert running is None
                running = (one.request.process, one.value)

    for number, (event, process, pick) in enumerate(events):
        keys = sorted(waiting, key=repr)
        if event in ("arrive", "acts"):
            waiting.add((process, number))
            heard(barrier.arrive(Request(process, number), has_action=event == "acts"))
        elif event in ("ran", "fail") and running is not None:
            runner, running = running, None
            heard(barrier.action_ended(*runner, succeeded=event == "ran")[1])
        elif event in ("expire", "cancel") and keys:
            heard(barrier.cancel(*keys[pick % len(keys)], expired=event == "expire"))
        elif event in ("reset", "abort"):
            running = None
            heard(getattr(barrier, event)())
        elif event == "lose":
            running = None
            waiting = {key for key in waiting if key[0] != process}
            heard(barrier.process_died(process, ""))

        assert barrier.waiting < parties
        if running is None:
            assert len(waiting) == barrier.waiting
        assert not (barrier.is_broken and waiting and running is None)


def waiting(barrier, has_action=False, timeout=20):
    """A thread that waits at a barrier where it is one more."""
    _, count = barrier.state()
    waits = in_thread(lambda: barrier.arrive(timeout, has_action=has_action))
    until(lambda: barrier.state() == (False, count + 1))
    return waits


def test_it_breaks_when_time_is_up(owner, side):
    barrier = owner.make(OwnedBarrier, 3)
    mine, waits = side(barrier), waiting(barrier)

    assert mine.arrive(0.01, has_action=False)[0] is Status.BROKEN
    assert waits()[0] is Status.BROKEN
    assert mine.state() == (True, 0)
    mine.reset()
    assert barrier.state() == (False, 0)
    mine.abort()
    assert barrier.state() == (True, 0)
    assert mine.arrive(None, has_action=False)[0] is Status.BROKEN


def test_the_action_is_run_while_the_others_wait_though_their_time_be_up(owner, monkeypatch):
    time_is_up, expired = threading.Event(), threading.Event()
    wait, cancel = waitable.wait_for_wakeup, waitable.OwnedWaitable._cancel

    def noted(self, waiter, **why):
        cancel(self, waiter, **why)
        expired.set()

    monkeypatch.setattr(
        waitable,
        "wait_for_wakeup",
        lambda gate, timeout: wait(gate, timeout) if timeout is None else not time_is_up.wait(20),
    )
    monkeypatch.setattr(waitable.OwnedWaitable, "_cancel", noted)
    barrier = owner.make(OwnedBarrier, 2)
    waits = waiting(barrier)
    status, number = barrier.arrive(None, has_action=True)
    assert status is Status.RUN_ACTION
    time_is_up.set()
    assert expired.wait(20)

    assert barrier.action_succeeded(number) is Status.OK
    assert waits() == (Status.OK, 0)


@pytest.mark.parametrize("parties", [1, 2])
def test_one_who_is_interrupted_leaves(owner, monkeypatch, parties):
    barrier = owner.make(OwnedBarrier, parties)

    deliver = barrier.deliver_answers

    def carry_and_interrupt(answers):
        deliver(answers)
        if answers and answers[0].status is Status.RUN_ACTION:
            raise KeyboardInterrupt

    def no_patience(gate, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(barrier, "deliver_answers", carry_and_interrupt)
    monkeypatch.setattr(waitable, "wait_for_wakeup", no_patience)
    with pytest.raises(KeyboardInterrupt):
        barrier.arrive(None, has_action=True)

    assert barrier.state() == (parties == 1, 0), "whoever was to run the action has not"


@pytest.mark.parametrize("code", [None, 1])
def test_it_breaks_when_a_process_dies_that_has_it(owner, other, code):
    barrier = owner.make(OwnedBarrier, 3)
    other.remote(barrier)
    waits = waiting(barrier)
    other.end(code)

    assert waits()[0] is Status.BROKEN
    assert barrier.state()[0]


def test_but_not_when_it_ends_normally_or_has_let_go_of_it(owner, other, third):
    barrier = owner.make(OwnedBarrier, 2)
    other.remote(barrier)
    last = third.remote(barrier)
    last.drop(0)
    until(lambda: len(barrier._references.peers(0)) == 1)
    other.close()
    third.die()
    until(lambda: not barrier._references.peers(0))

    assert barrier.state() == (False, 0)
