"""Events, conditions, and what threads that wait for an object of any kind are told."""

import mmap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.address import Kind
from fiber._objects.sync import waitable
from fiber._objects.sync.barrier import BarrierState, OwnedBarrier
from fiber._objects.sync.condition import (
    SIZE,
    ConditionState,
    OwnedCondition,
    PeersConditionState,
    SharedCondition,
)
from fiber._objects.sync.event import EventState, OwnedEvent
from fiber._objects.sync.monitor import is_possible
from fiber._objects.sync.protocol import Op, Request, Status
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber.exceptions import LeaseLostError, PeerLostError
from wire_world import in_thread, until

NEEDS_MONITORS = pytest.mark.skipif(not is_possible(), reason="this system has no robust mutexes")


def sleep(condition, timeout=20, release=lambda: None, *, certain=False):
    return condition.wait(release, timeout, certain=certain)


# how one is made for which a thread has to wait, and how it waits
KINDS = {
    "lock": (
        lambda store: OwnedSemaphore(store, Kind.LOCK, SemaphoreState(0, 1)),
        lambda lock: lock.acquire(True, None),
    ),
    "event": (OwnedEvent, lambda event: event.wait(None)),
    "condition": (OwnedCondition, lambda condition: sleep(condition, None)),
    "barrier": (
        lambda store: OwnedBarrier(store, 2),
        lambda barrier: barrier.arrive(None, has_action=False),
    ),
}


@pytest.fixture(params=KINDS)
def waiting(request, owner, other):
    """An object, one of another process, and a thread of that one that waits."""
    make, wait = KINDS[request.param]
    made = owner.make(make)
    theirs = other.remote(made)
    waits = in_thread(lambda: wait(theirs))
    until(lambda: len(made._state._queue))
    return made, theirs, waits


def test_threads_get_an_error_when_the_owner_dies(waiting, owner):
    _, theirs, waits = waiting
    owner.die()

    lost = f"process that this {theirs.shape.name} lives in is gone"
    with pytest.raises(PeerLostError, match=lost) as caught:
        waits()
    assert not isinstance(caught.value, LeaseLostError)
    with pytest.raises(PeerLostError, match=lost):
        theirs.request(Op.VALUE)


@pytest.mark.parametrize("code", [None, 0])
def test_a_process_that_ends_waits_no_more(waiting, other, code):
    made, _, waits = waiting
    other.end(code)

    until(lambda: not len(made._state._queue))
    with pytest.raises(PeerLostError):
        waits()


@pytest.mark.parametrize(
    "state", [SemaphoreState(0, 1), EventState(), ConditionState(), BarrierState(2)]
)
def test_a_request_that_was_answered_before_is_not_cancelled(state):
    assert state.cancel("a", 1) == []


@pytest.fixture
def event(owner):
    return owner.make(OwnedEvent)


@pytest.fixture
def mine(event, side):
    return side(event)


def waiting_for(event, mine):
    """A thread that waits for an event."""
    waits = in_thread(lambda: mine.wait(20))
    until(lambda: event._event.waiting)
    return waits


def test_what_one_sets_is_set_for_all(event, mine, third):
    last = third.remote(event)
    for timeout in (0, -1, 0.01):
        assert not mine.wait(timeout)
    assert event._event.waiting == 0
    waits = waiting_for(event, last)
    mine.set()

    assert mine.is_set()
    assert waits()
    assert last.wait(0)
    last.clear()
    assert not event.is_set()
    assert not mine.is_set()


def test_a_thread_wakes_though_it_is_cleared_at_once(event, mine):
    waits = waiting_for(event, mine)
    event.set()
    event.clear()

    assert waits(), "it was set while it waited"


def outcomes(answers):
    assert all(one.status is Status.OK for one in answers)
    return [(one.request.process, one.request.number) for one in answers]


@pytest.mark.parametrize("acknowledged, woken", [(1, [("b", 2)]), (2, [])])
def test_a_dead_process_wakes_others_with_what_it_had_not_acknowledged(acknowledged, woken):
    condition = ConditionState()
    for number, process in enumerate("aabc"):
        assert condition.wait(Request(process, number)) == []
    condition.notify(2)
    for _ in range(acknowledged):
        condition.acknowledge("a")

    assert outcomes(condition.process_died("a", "a")) == woken


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sleep", "notify", "cancel", "woke", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 4),
    ),
    max_size=60,
)


def _shared_state():
    shared = SharedCondition(mmap.mmap(-1, SIZE), 0, is_new=True)
    return PeersConditionState(shared, lambda wait: None)


STATES = [ConditionState, pytest.param(_shared_state, marks=NEEDS_MONITORS)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES, ids=["pure", "in shared memory"])
@given(events=EVENTS)
def test_whatever_happens_each_request_is_answered_once_and_in_order(state, events):
    condition = state()
    waiting: list[tuple[object, int]] = []

    def heard(answers):
        for key in outcomes(answers):
            assert key == waiting.pop(0)

    for number, (event, process, pick) in enumerate(events):
        if event == "sleep":
            condition.wait(Request(process, number))
            waiting.append((process, number))
        elif event == "notify":
            before = len(waiting)
            answers = condition.notify(pick)
            assert len(answers) == min(pick, before)
            heard(answers)
        elif event == "cancel" and waiting:
            key = waiting.pop(pick % len(waiting))
            assert len(condition.cancel(*key)) == 1
        elif event == "woke" and process is not None:
            condition.acknowledge(process)
        elif event == "lose" and process is not None:
            waiting[:] = [key for key in waiting if key[0] != process]
            heard(condition.process_died(process, ""))
        assert condition.waiting == len(waiting)


@pytest.fixture
def condition(owner):
    return owner.make(OwnedCondition)


def sleeping(condition, mine, timeout=20):
    """A thread that sleeps at a condition where it is one more."""
    count = condition.waiting()
    waits = in_thread(lambda: sleep(mine, timeout))
    until(lambda: condition.waiting() == count + 1)
    return waits


def test_a_thread_sleeps_until_it_is_notified(condition, side):
    mine = side(condition)
    assert not sleep(mine, 0.01)
    assert not sleep(mine, 0)
    assert condition.waiting() == 0
    seen = []
    waits = in_thread(
        lambda: sleep(mine, release=lambda: seen.append(condition.waiting()), certain=True)
    )
    until(lambda: seen)
    condition.notify(1, certain=False)

    assert waits()
    assert seen == [1], "where it must be certain, the owner knows before the lock is released"
    assert condition.waiting() == 0


def test_processes_sleep_until_they_are_notified(condition, other, third):
    theirs, last = other.remote(condition), third.remote(condition)
    first, second = sleeping(condition, theirs), sleeping(condition, last)
    theirs.notify(1, certain=False)
    assert first()
    assert not sleep(theirs, 0.01)
    theirs.notify(5, certain=True)

    assert second()
    assert condition.waiting() == 0
    until(lambda: not condition._condition._unacknowledged)


def test_the_notification_of_one_that_is_interrupted_at_the_owner_wakes_another(
    condition, monkeypatch
):
    me, wait_for_wakeup, waits = threading.get_ident(), waitable.wait_for_wakeup, []

    def interrupted(gate, timeout):
        if threading.get_ident() != me:
            return wait_for_wakeup(gate, timeout)
        condition.notify(1, certain=False)
        raise KeyboardInterrupt

    monkeypatch.setattr(waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(KeyboardInterrupt):
        # the other sleeps later than the one that is interrupted
        sleep(condition, release=lambda: waits.append(sleeping(condition, condition)))

    (woken,) = waits
    assert woken()
    assert condition.waiting() == 0


def test_where_releasing_fails_no_thread_waits(condition):
    def release():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sleep(condition, release=release)
    assert condition.waiting() == 0


def test_the_notification_of_one_that_is_interrupted_elsewhere_wakes_another(
    condition, other, third
):
    theirs, last = other.remote(condition), third.remote(condition)
    first, second = sleeping(condition, theirs), sleeping(condition, last)
    theirs.notify(1, certain=True)
    assert first()
    # the notification was heard, and its thread interrupted at that moment
    theirs._rollback(waitable.Reply(waitable.Status.OK))

    assert second()
