"""Events: set, cleared, waited for."""

import pytest

from fiber._objects.sync.event import EventState, OwnedEvent
from fiber._objects.sync.wait_queue import Request, Status
from fiber.exceptions import PeerLostError
from objects_world import in_thread
from wire_world import until


def outcomes(answers):
    return [(one.request.process, one.status) for one in answers]


def test_those_who_wait_go_on_when_it_is_set():
    event = EventState()
    assert event.wait(Request("a"), wait=True) == []
    assert event.wait(Request("b"), wait=True) == []

    assert outcomes(event.set()) == [("a", Status.OK), ("b", Status.OK)]
    assert outcomes(event.wait(Request("c"), wait=True)) == [("c", Status.OK)]


def test_a_request_without_wait_is_answered_at_once():
    event = EventState()
    assert outcomes(event.wait(Request("a"), wait=False)) == [("a", Status.REFUSED)]
    event.set()
    assert outcomes(event.wait(Request("a"), wait=False)) == [("a", Status.OK)]
    event.clear()

    assert outcomes(event.wait(Request("a"), wait=False)) == [("a", Status.REFUSED)]


def test_a_cancelled_request_is_answered_and_the_others_wait_on():
    event = EventState()
    event.wait(Request("a", 1), wait=True)
    event.wait(Request("b", 1), wait=True)

    assert outcomes(event.cancel("a", 1)) == [("a", Status.REFUSED)]
    assert event.cancel("a", 1) == []
    assert event.waiting == 1


def test_processes_that_end_wait_no_more():
    event = EventState()
    for name in "abc":
        event.wait(Request(name), wait=True)

    assert event.process_exited("a", 0) + event.process_died("b", "b") == []
    assert outcomes(event.set()) == [("c", Status.OK)]


# -- between threads and processes


@pytest.fixture
def event(owner):
    made = OwnedEvent(owner.store)
    made.hold(0)
    return made


@pytest.fixture(params=["owner", "other"])
def mine(request, event, other):
    """What a process has of the event: its owner, or another one."""
    return other.remote(event) if request.param == "other" else event


def waiting(event, mine, timeout=20):
    """A thread that waits for an event."""
    waits = in_thread(lambda: mine.wait(timeout))
    until(lambda: event._event.waiting)
    return waits


def test_what_one_sets_is_set_for_all(event, mine, third):
    last = third.remote(event)
    for timeout in (0, -1, 0.01):
        assert not mine.wait(timeout)
    assert event._event.waiting == 0
    waits = waiting(event, last)
    mine.set()

    assert mine.is_set()
    assert waits()
    assert last.wait(0)
    last.clear()
    assert not event.is_set()
    assert not mine.is_set()


def test_a_thread_wakes_though_it_is_cleared_at_once(event, mine):
    waits = waiting(event, mine)
    event.set()
    event.clear()

    assert waits(), "it was set while it waited"


def test_waiting_threads_get_an_error_when_the_owner_dies(event, owner, other):
    theirs = other.remote(event)
    waits = waiting(event, theirs, None)
    owner.die()

    for use in (waits, theirs.set, theirs.clear, theirs.is_set):
        with pytest.raises(PeerLostError, match="process that this event lives in is gone"):
            use()


def test_a_dead_process_waits_no_more(event, other):
    waits = waiting(event, other.remote(event), None)
    other.die()

    until(lambda: not event._event.waiting)
    with pytest.raises(PeerLostError):
        waits()
