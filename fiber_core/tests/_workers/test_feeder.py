"""An iterable is drawn on a thread of its own, in order, no further ahead than a window."""

import itertools
import threading

import pytest

from fiber._workers import open_calls
from fiber._workers.open_calls import Feeder
from fiber.exceptions import TerminatedError
from tasks_world import Master
from waiting import until


class Source:
    """Iterable that counts drawn items and waits before one on demand."""

    def __init__(self, items, wait_before=()):
        self.items = items
        self.wait_before = set(wait_before)
        self.go_on = threading.Event()
        self.drawn = 0
        self.closed = threading.Event()

    def __iter__(self):
        try:
            for item in self.items:
                if item in self.wait_before:
                    assert self.go_on.wait(20)
                self.drawn += 1
                yield item
        finally:
            self.closed.set()


@pytest.fixture
def master():
    return Master("a", "b")


@pytest.fixture
def feeds(master):
    made = []

    def feed(iterable, *, chunksize=None):
        call, sink = master.call(abs, None, chunksize=chunksize)
        feeder = Feeder(master.dispatcher, call, iterable, workers=2)
        made.append((feeder, iterable))
        feeder.start()
        return feeder, call, sink

    yield feed
    for feeder, iterable in made:
        feeder.stop()
        if isinstance(iterable, Source):
            iterable.go_on.set()
        feeder._thread.join(20)
        assert not feeder._thread.is_alive()


def test_what_is_drawn_reaches_the_call_in_order_and_closes_it(master, feeds):
    feeder, _, sink = feeds(range(50))
    feeder._thread.join(20)
    # a flush that comes too late adds nothing
    feeder._add_drawn(closed=False)
    master.ask(master.peers["a"])
    master.work(master.peers["a"], lambda x: x)
    assert sink.outcomes == {n: n for n in range(50)}
    assert sink.is_done


def test_an_endless_iterable_is_drawn_up_to_the_window_until_it_is_stopped(feeds):
    source = Source(itertools.count())
    feeder, *_ = feeds(source)
    until(lambda: source.drawn >= open_calls.INITIAL_AHEAD)
    assert not source.closed.wait(0.05)
    assert source.drawn == open_calls.INITIAL_AHEAD
    # what is taken makes room
    feeder.taken(10)
    until(lambda: source.drawn == open_calls.INITIAL_AHEAD + 10)
    feeder.arrived(15)
    assert not source.closed.wait(0.05)
    assert source.drawn == open_calls.INITIAL_AHEAD + 10
    # and while draining every outcome
    feeder.drain()
    until(lambda: source.drawn == open_calls.INITIAL_AHEAD + 15)
    feeder.arrived(5)
    until(lambda: source.drawn == open_calls.INITIAL_AHEAD + 20)
    feeder.stop()
    feeder._thread.join(20)
    assert not feeder._thread.is_alive()
    assert source.closed.is_set(), "the thread that ran the generator closes it"


def test_the_window_grows_with_small_items_and_shrinks_with_large_ones(feeds):
    feeder, *_ = feeds(Source([]), chunksize=1000)
    assert feeder._window() == 4000, "units of many items fit"
    feeder, call, _ = feeds(Source([]))
    call.item_bytes = 10
    assert feeder._window() == open_calls.MAX_AHEAD
    call.item_bytes = open_calls.MAX_AHEAD_BYTES / 8
    assert feeder._window() == 8
    call.item_bytes = open_calls.MAX_AHEAD_BYTES * 100
    assert feeder._window() == 4, "enough to keep two workers busy"


def test_stopped_while_the_iterable_waits_it_ends_once_that_answers(feeds):
    source = Source(itertools.count(), wait_before={3})
    feeder, *_ = feeds(source)
    until(lambda: source.drawn == 3)
    feeder.stop()
    source.go_on.set()
    feeder._thread.join(20)
    assert source.drawn == 4


def test_in_a_busy_pool_the_first_item_goes_out_at_once_and_others_when_they_are_waited_for(
    master, feeds
):
    """The next item may depend on its result, also while other calls keep the pool busy."""
    master.call(abs, list(range(1000)))
    source = Source(range(5), wait_before={3})
    feeder, call, _ = feeds(source)
    until(lambda: source.drawn == 3)
    assert call.count == 1
    # the third may be on its way from the source at the first flush
    until(lambda: feeder.flush() or call.count == 3)
    assert not call.closed, "they came with the end of the iterable"


def test_nothing_is_handed_to_a_call_that_ended(master, feeds):
    source = Source(itertools.count(), wait_before={2})
    _, call, _ = feeds(source)
    until(lambda: source.drawn == 2)
    count = call.count
    master.dispatcher.end(TerminatedError("over"))
    source.go_on.set()
    until(lambda: source.drawn == open_calls.INITIAL_AHEAD)
    assert call.count == count
