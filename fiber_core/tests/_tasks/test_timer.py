"""A deadline timer is set anew for an earlier deadline only; a fake reactor keeps its timers."""

import time

from fiber._tasks.dispatcher import DeadlineTimer
from fiber._wire.reactor import Timer


class Reactor:
    """Keeps the timers that it was asked for."""

    def __init__(self):
        self.timers = []

    def call_later(self, seconds, action):
        timer = Timer(time.monotonic() + seconds, action)
        self.timers.append(timer)
        return timer

    @property
    def live(self):
        return [timer for timer in self.timers if timer.action is not None]


def a_timer():
    reactor, rings = Reactor(), []
    return DeadlineTimer(reactor, lambda: rings.append(1)), reactor, rings


def test_nothing_is_set_where_there_is_no_deadline():
    timer, reactor, _ = a_timer()
    timer.set(None)
    assert reactor.timers == []


def test_a_deadline_that_is_over_rings_at_once():
    timer, reactor, rings = a_timer()
    timer.set(0.0)
    assert reactor.timers[0].when <= time.monotonic()
    reactor.timers[0].action()
    assert rings == [1]


def test_one_that_is_set_for_sooner_stays():
    timer, reactor, _ = a_timer()
    now = time.monotonic()
    timer.set(now + 100)
    timer.set(now + 200)
    assert len(reactor.timers) == 1


def test_what_comes_sooner_takes_the_place_of_what_was_set():
    timer, reactor, _ = a_timer()
    now = time.monotonic()
    timer.set(now + 200)
    timer.set(now + 100)
    assert [timer.when < now + 150 for timer in reactor.live] == [True]


def test_it_can_be_set_again_once_it_rang():
    timer, reactor, _ = a_timer()
    now = time.monotonic()
    timer.set(now + 100)
    timer.expired()
    timer.set(now + 200)
    assert len(reactor.timers) == 2


def test_cancelled_it_does_not_ring():
    timer, reactor, _ = a_timer()
    timer.set(time.monotonic() + 100)
    timer.cancel()
    timer.cancel()
    assert reactor.live == []
