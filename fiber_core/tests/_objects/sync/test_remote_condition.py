"""A condition's sleepers in other processes than its owner's."""

import pytest

from fiber._objects.sync import remote_waitable
from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def sleep(condition, timeout=20, release=lambda: None, *, certain=False):
    return condition.wait(release, timeout, certain=certain)


def test_processes_sleep_until_they_are_notified(condition, other, third):
    theirs, last = other.remote(condition), third.remote(condition)
    first = in_thread(lambda: sleep(theirs))
    until(lambda: condition.waiting() == 1)
    second = in_thread(lambda: sleep(last))
    until(lambda: last.waiting() == 2)
    theirs.notify(1, certain=False)
    assert first()
    assert not sleep(theirs, 0.01)
    theirs.notify(5, certain=True)

    assert second()
    assert condition.waiting() == 0
    until(lambda: not condition._condition._unacknowledged)


def test_where_it_must_be_certain_the_owner_knows_before_the_lock_is_released(condition, other):
    theirs = other.remote(condition)
    seen = []
    waits = in_thread(
        lambda: sleep(theirs, release=lambda: seen.append(condition.waiting()), certain=True)
    )
    until(lambda: seen)
    condition.notify(1, certain=False)

    assert waits()
    assert seen == [1]


class Interrupt(BaseException):
    pass


def test_the_notification_of_one_that_is_interrupted_wakes_another(
    condition, other, third, monkeypatch
):
    theirs, last = other.remote(condition), third.remote(condition)
    first = in_thread(lambda: sleep(theirs, release=lambda: None))
    until(lambda: condition.waiting() == 1)
    second = in_thread(lambda: sleep(last))
    until(lambda: condition.waiting() == 2)
    theirs.notify(1, certain=True)
    assert first()
    # the notification was heard, and its thread interrupted at that moment
    theirs._rollback(remote_waitable.Reply(remote_waitable.Status.OK))

    assert second()


def test_an_unacknowledged_notification_of_a_dead_process_wakes_another(
    condition, other, third, monkeypatch
):
    theirs, last = other.remote(condition), third.remote(condition)
    monkeypatch.setattr(theirs, "on_notice", lambda message: None)
    theirs._owner.on_notice(theirs.target, theirs.on_notice)
    first = in_thread(lambda: sleep(theirs, None))
    until(lambda: condition.waiting() == 1)
    second = in_thread(lambda: sleep(last))
    until(lambda: condition.waiting() == 2)
    condition.notify(1, certain=False)
    other.die()

    assert second()
    with pytest.raises(PeerLostError):
        first()


def test_a_process_that_ends_normally_sleeps_no_more(condition, other):
    theirs = other.remote(condition)
    waits = in_thread(lambda: sleep(theirs, None))
    until(lambda: condition.waiting() == 1)
    other.close()
    until(lambda: condition.waiting() == 0)

    with pytest.raises(PeerLostError):
        waits()


def test_waiting_threads_get_an_error_when_the_owner_dies(condition, owner, other):
    theirs = other.remote(condition)
    waits = in_thread(lambda: sleep(theirs, None))
    until(lambda: condition.waiting() == 1)
    owner.die()

    with pytest.raises(PeerLostError, match="process that this condition lives in is gone"):
        waits()
