"""A condition's sleepers at its owner."""

import pytest

from fiber._objects.sync import owned
from objects_world import in_thread
from wire_world import until


def sleep(condition, timeout=20, release=lambda: None):
    return condition.sleep(release, timeout, certain=False)


def test_a_thread_sleeps_until_it_is_notified(condition):
    released = []
    waits = in_thread(lambda: sleep(condition, release=lambda: released.append(True)))
    until(lambda: released)
    assert condition.sleepers() == 1
    condition.notify(1, certain=False)

    assert waits()
    assert condition.sleepers() == 0


def test_it_wakes_by_itself_in_time(condition):
    assert not sleep(condition, 0.01)
    assert not sleep(condition, 0)
    assert condition.sleepers() == 0


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
                undone.setattr(owned, "pass_gate", pass_gate)
                waits = in_thread(lambda: sleep(condition))
                until(lambda: condition.sleepers() == 2)

    pass_gate = owned.pass_gate
    monkeypatch.setattr(owned, "pass_gate", interrupted)
    with pytest.raises(Interrupt):
        sleep(condition, release=release)
    monkeypatch.undo()

    if waits is not None:
        assert waits()
    assert condition.sleepers() == 0


def test_where_releasing_fails_nobody_sleeps(condition):
    def release():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sleep(condition, release=release)
    assert condition.sleepers() == 0
