"""A condition's sleepers in other processes than its owner's."""

import pytest

from fiber._objects.sync import remote
from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def sleep(condition, timeout=20, release=lambda: None, *, certain=False):
    return condition.sleep(release, timeout, certain=certain)


def test_processes_sleep_until_they_are_notified(condition, other, third):
    theirs, last = other.remote(condition), third.remote(condition)
    first = in_thread(lambda: sleep(theirs))
    until(lambda: condition.sleepers() == 1)
    second = in_thread(lambda: sleep(last))
    until(lambda: last.sleepers() == 2)
    theirs.notify(1, certain=False)
    assert first()
    assert not sleep(theirs, 0.01)
    theirs.notify(5, certain=True)

    assert second()
    assert condition.sleepers() == 0
    until(lambda: not condition._sleepers._under_way)


def test_where_it_must_be_certain_the_owner_knows_before_the_lock_is_released(condition, other):
    theirs = other.remote(condition)
    seen = []
    waits = in_thread(
        lambda: sleep(theirs, release=lambda: seen.append(condition.sleepers()), certain=True)
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
    until(lambda: condition.sleepers() == 1)
    second = in_thread(lambda: sleep(last))
    until(lambda: condition.sleepers() == 2)
    theirs.notify(1, certain=True)
    assert first()
    # the notification was heard, and its thread interrupted at that moment
    theirs._undo(remote.Told(remote.Verdict.YES))

    assert second()


def test_a_notification_that_a_dead_process_has_not_heard_wakes_another(
    condition, other, third, monkeypatch
):
    theirs, last = other.remote(condition), third.remote(condition)
    monkeypatch.setattr(theirs, "on_word", lambda message: None)
    theirs._owner.listen(theirs.target, theirs.on_word)
    first = in_thread(lambda: sleep(theirs, None))
    until(lambda: condition.sleepers() == 1)
    second = in_thread(lambda: sleep(last))
    until(lambda: condition.sleepers() == 2)
    condition.notify(1, certain=False)
    other.die()

    assert second()
    with pytest.raises(PeerLostError):
        first()


def test_a_process_that_ends_normally_sleeps_no_more(condition, other):
    theirs = other.remote(condition)
    waits = in_thread(lambda: sleep(theirs, None))
    until(lambda: condition.sleepers() == 1)
    other.close()
    until(lambda: condition.sleepers() == 0)

    with pytest.raises(PeerLostError):
        waits()


def test_those_who_sleep_hear_of_the_owners_death(condition, owner, other):
    theirs = other.remote(condition)
    waits = in_thread(lambda: sleep(theirs, None))
    until(lambda: condition.sleepers() == 1)
    owner.die()

    with pytest.raises(PeerLostError, match="process that this condition lives in is gone"):
        waits()
