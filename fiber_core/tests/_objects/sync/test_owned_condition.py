"""A condition's sleepers at its owner."""

import pytest

from fiber._objects.sync import owned_waitable
from objects_world import in_thread
from wire_world import until


def sleep(condition, timeout=20, release=lambda: None):
    return condition.wait(release, timeout, certain=False)


def test_a_thread_sleeps_until_it_is_notified(condition):
    released = []
    waits = in_thread(lambda: sleep(condition, release=lambda: released.append(True)))
    until(lambda: released)
    assert condition.waiting() == 1
    condition.notify(1, certain=False)

    assert waits()
    assert condition.waiting() == 0


def test_it_wakes_by_itself_in_time(condition):
    assert not sleep(condition, 0.01)
    assert not sleep(condition, 0)
    assert condition.waiting() == 0


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("crossing", [False, True])
def test_the_notification_of_one_that_is_interrupted_wakes_another(
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
                waits = in_thread(lambda: sleep(condition))
                until(lambda: condition.waiting() == 2)

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
