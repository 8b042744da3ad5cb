"""An event in another process than its owner's."""

import pytest

from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def test_what_one_sets_is_set_for_all(event, other, third):
    theirs, last = other.remote(event), third.remote(event)
    waits = in_thread(lambda: last.wait(20))
    until(lambda: event._event.waiting)
    theirs.set()

    assert event.is_set()
    assert waits()
    assert last.wait(0)
    last.clear()
    assert not event.is_set()
    assert not theirs.is_set()
    assert not theirs.wait(0)
    assert not theirs.wait(0.01)
    assert event._event.waiting == 0


def test_waiting_threads_get_an_error_when_the_owner_dies(event, owner, other):
    theirs = other.remote(event)
    waits = in_thread(lambda: theirs.wait(None))
    until(lambda: event._event.waiting)
    owner.die()

    for use in (waits, theirs.set, theirs.clear, theirs.is_set):
        with pytest.raises(PeerLostError, match="process that this event lives in is gone"):
            use()


def test_a_dead_process_waits_no_more(event, other):
    theirs = other.remote(event)
    waits = in_thread(lambda: theirs.wait(None))
    until(lambda: event._event.waiting)
    other.die()

    until(lambda: not event._event.waiting)
    with pytest.raises(PeerLostError):
        waits()
