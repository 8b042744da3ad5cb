"""Readers that poll a descriptor: an only one is sent items, several are notified."""

from __future__ import annotations

from collections import deque

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    Deliver,
    End,
    Nothing,
    Offer,
    Ready,
    Recall,
    Request,
    StartTimer,
    Unready,
)
from fiber._objects.queue.state import QueueState


def standing(reader):
    return Request(reader, mode=Mode.STANDING)


def offer(*items):
    return Offer("writer", deque(items))


def only(out, *kinds):
    return [one for one in out if isinstance(one, kinds)]


def polled():
    """A queue that two readers poll."""
    state, pollers = QueueState(), [standing("a"), standing("b")]
    for name in "ab":
        state.add_reader(name)
    for one in pollers:
        assert state.request(one) == []
    return state, pollers


def test_a_reader_alone_is_sent_what_comes():
    state, request = QueueState(), standing("a")
    state.request(request)
    assert only(state.offer(offer(b"1")), Deliver) == [Deliver(request, 1, [b"1"])]


def test_several_are_notified_and_the_first_request_gets_it():
    state, (first, second) = polled()
    assert only(state.offer(offer(b"1")), Deliver, Ready) == [Ready(first), Ready(second)]

    request = Request("b")
    out = state.request(request)
    assert only(out, Deliver) == [Deliver(request, 1, [b"1"])]
    # the one that asked knows
    assert only(out, Unready) == [Unready(first)]


def test_they_are_notified_once_while_there_is_something():
    state, _ = polled()
    state.offer(offer(b"1"))
    assert only(state.offer(offer(b"2")), Ready) == []


def test_what_a_thread_of_the_owner_takes_is_not_there_for_others():
    state, pollers = polled()
    state.offer(offer(b"1"))
    assert state.pollers
    state.take_now()
    assert state.advance() == [Unready(one) for one in pollers]
    assert not state.pollers


def test_where_threads_of_the_owner_poll_no_reader_is_sent_anything_unasked():
    state, request = QueueState(), standing("a")
    state.request(request)
    state.set_owner_polls(True)
    assert only(state.offer(offer(b"1")), Deliver, Ready) == [Ready(request)]
    assert state.available


def test_what_was_sent_already_is_asked_back_for_threads_of_the_owner():
    state, request = QueueState(), standing("a")
    state.request(request)
    state.offer(offer(b"1"))
    assert state.set_owner_polls(True) == [StartTimer()]
    assert state.on_timer() == [Recall("a")]
    state.give_back("a", 0, 1)
    assert state.available


def test_a_request_that_is_kept_ends_where_another_reader_comes_to_poll():
    state, kept = QueueState(), Request("a", max_items=10)
    state.request(kept)
    state.offer(offer(b"1"))
    assert kept.kept
    state.add_reader("b")
    assert only(state.request(standing("b")), Nothing) == [Nothing(kept)]


def test_a_reader_that_is_gone_is_not_notified():
    state, (_, second) = polled()
    state.offer(offer(b"1"))
    state.remove_reader("a")
    state.take_now()
    assert state.advance() == [Unready(second)]


def test_pollers_get_the_end():
    state, (first, second) = polled()
    assert state.close_writers() == [End(first), End(second)]
