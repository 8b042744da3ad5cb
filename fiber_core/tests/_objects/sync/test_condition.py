"""A condition's sleepers: woken in order, and no notification lost with a process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync import owned_waitable, remote_waitable
from fiber._objects.sync.condition import ConditionState, OwnedCondition
from fiber._objects.sync.wait_queue import Request, Status
from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def outcomes(answers):
    assert all(one.status is Status.OK for one in answers)
    return [(one.request.process, one.request.number) for one in answers]


def asleep(*parties):
    condition = ConditionState()
    for number, process in enumerate(parties):
        assert condition.wait(Request(process, number)) == []
    return condition


def test_those_who_slept_for_longest_are_woken():
    condition = asleep("a", "b", None)

    assert outcomes(condition.notify(2)) == [("a", 0), ("b", 1)]
    assert outcomes(condition.notify(5)) == [(None, 2)]
    assert condition.notify(1) == []
    assert len(condition) == 0


def test_a_notification_without_a_waiting_thread_is_not_kept():
    condition = asleep()
    assert condition.notify(1) == []

    assert condition.wait(Request("a")) == []


def test_negative_counts_wake_none():
    assert asleep("a").notify(-1) == []


def test_one_who_cancels_sleeps_no_more():
    condition = asleep("a", "b")
    (answer,) = condition.cancel("a", 0)

    assert answer.status is Status.REFUSED
    assert condition.cancel("a", 0) == []
    assert outcomes(condition.notify(1)) == [("b", 1)]


def test_an_unacknowledged_notification_of_a_dead_process_wakes_another():
    condition = asleep("a", "a", "b", "c")
    condition.notify(2)
    condition.acknowledge("a")

    assert outcomes(condition.process_died("a", "a")) == [("b", 2)]
    assert len(condition) == 1


def test_an_acknowledged_notification_of_a_dead_process_wakes_none():
    condition = asleep("a", "b")
    condition.notify(1)
    condition.acknowledge("a")

    assert condition.process_died("a", "a") == []


def test_the_dead_are_not_woken():
    condition = asleep("a", "b")
    assert condition.process_died("a", "a") == []

    assert outcomes(condition.notify(1)) == [("b", 1)]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sleep", "notify", "cancel", "woke", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 4),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_each_request_is_answered_once_and_in_order(events):
    condition = ConditionState()
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
        assert len(condition) == len(waiting)


# -- between threads and processes


class Interrupt(BaseException):
    pass


@pytest.fixture
def condition(owner):
    made = OwnedCondition(owner.store)
    made.hold(0)
    return made


def sleep(condition, timeout=20, release=lambda: None, *, certain=False):
    return condition.wait(release, timeout, certain=certain)


def sleeping(condition, mine, timeout=20):
    """A thread that sleeps at a condition where it is one more."""
    count = condition.waiting()
    waits = in_thread(lambda: sleep(mine, timeout))
    until(lambda: condition.waiting() == count + 1)
    return waits


@pytest.mark.parametrize("where", ["owner", "other"])
def test_a_thread_sleeps_until_it_is_notified(condition, other, where):
    mine = condition if where == "owner" else other.remote(condition)
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


@pytest.mark.parametrize("crossing", [False, True])
def test_the_notification_of_one_that_is_interrupted_at_the_owner_wakes_another(
    condition, monkeypatch, crossing
):
    def interrupted(gate, timeout):
        if crossing:
            condition.notify(1, certain=False)
        raise Interrupt

    waits = None

    def release():
        nonlocal waits
        if crossing:
            # later than the one that is interrupted
            with monkeypatch.context() as undone:
                undone.setattr(owned_waitable, "wait_for_wakeup", wait_for_wakeup)
                waits = sleeping(condition, condition)

    wait_for_wakeup = owned_waitable.wait_for_wakeup
    monkeypatch.setattr(owned_waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(Interrupt):
        sleep(condition, release=release)
    monkeypatch.undo()

    if waits is not None:
        assert waits()
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
    theirs._rollback(remote_waitable.Reply(remote_waitable.Status.OK))

    assert second()


def test_a_notification_that_a_dead_process_did_not_hear_wakes_another(
    condition, other, third, monkeypatch
):
    theirs, last = other.remote(condition), third.remote(condition)
    monkeypatch.setattr(theirs, "on_notice", lambda message: None)
    theirs._owner.on_notice(theirs.target, theirs.on_notice)
    first, second = sleeping(condition, theirs, None), sleeping(condition, last)
    condition.notify(1, certain=False)
    other.die()

    assert second()
    with pytest.raises(PeerLostError):
        first()


def test_a_process_that_ends_normally_sleeps_no_more(condition, other):
    waits = sleeping(condition, other.remote(condition), None)
    other.close()
    until(lambda: condition.waiting() == 0)

    with pytest.raises(PeerLostError):
        waits()


def test_waiting_threads_get_an_error_when_the_owner_dies(condition, owner, other):
    waits = sleeping(condition, other.remote(condition), None)
    owner.die()

    with pytest.raises(PeerLostError, match="process that this condition lives in is gone"):
        waits()
