"""An event at its owner."""

from objects_world import in_thread
from wire_world import until


def test_threads_wait_until_it_is_set(event):
    assert not event.wait(0)
    assert not event.wait(-1)
    assert not event.wait(0.01)
    waits = in_thread(lambda: event.wait(20))
    until(lambda: event._event.waiting)
    event.set()

    assert waits()
    assert event.is_set()
    event.clear()
    assert not event.is_set()


def test_a_thread_of_the_owner_wakes_another_process(event, other):
    theirs = other.remote(event)
    waits = in_thread(lambda: theirs.wait(20))
    until(lambda: event._event.waiting)
    event.set()
    event.clear()

    assert waits(), "it was set while it waited"
