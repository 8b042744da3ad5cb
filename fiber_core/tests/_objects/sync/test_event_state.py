"""An event: set, cleared, waited for."""

from fiber._objects.sync.event import EventState
from fiber._objects.sync.wait_queue import Request, Status


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
