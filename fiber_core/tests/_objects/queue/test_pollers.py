"""Readers that wait by a descriptor: alone they are sent what comes, several are told of it."""

from __future__ import annotations

from collections import deque

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    End,
    Give,
    Nothing,
    Offer,
    Ready,
    Recall,
    Request,
    Unready,
    Watch,
)
from fiber._objects.queue.state import Lane


def standing(reader):
    return Request(reader, mode=Mode.STANDING)


def offer(*items):
    return Offer("writer", deque(items))


def only(out, *kinds):
    return [one for one in out if isinstance(one, kinds)]


def watched():
    """A lane that two readers watch."""
    lane, watchers = Lane(), [standing("a"), standing("b")]
    for name in "ab":
        lane.open(name)
    for watcher in watchers:
        assert lane.ask(watcher) == []
    return lane, watchers


def test_a_reader_alone_is_sent_what_comes():
    lane, request = Lane(), standing("a")
    lane.ask(request)
    assert only(lane.offer(offer(b"1")), Give) == [Give(request, 1, [b"1"])]


def test_several_are_told_and_whoever_asks_gets_it():
    lane, (first, second) = watched()
    assert only(lane.offer(offer(b"1")), Give, Ready) == [Ready(first), Ready(second)]

    request = Request("b")
    out = lane.ask(request)
    assert only(out, Give) == [Give(request, 1, [b"1"])]
    # the one that asked knows
    assert only(out, Unready) == [Unready(first)]


def test_they_are_told_once_while_there_is_something():
    lane, _ = watched()
    lane.offer(offer(b"1"))
    assert only(lane.offer(offer(b"2")), Ready) == []


def test_what_a_thread_of_the_owner_takes_is_not_there_for_others():
    lane, watchers = watched()
    lane.offer(offer(b"1"))
    assert lane.watchers
    lane.take_now()
    assert lane.advance() == [Unready(one) for one in watchers]
    assert not lane.watchers


def test_where_threads_of_the_owner_watch_nobody_is_sent_anything_unasked():
    lane, request = Lane(), standing("a")
    lane.ask(request)
    lane.watch_here(True)
    assert only(lane.offer(offer(b"1")), Give, Ready) == [Ready(request)]
    assert lane.available


def test_what_was_sent_already_is_asked_back_for_threads_of_the_owner():
    lane, request = Lane(), standing("a")
    lane.ask(request)
    lane.offer(offer(b"1"))
    assert lane.watch_here(True) == [Watch()]
    assert lane.overdue() == [Recall("a")]
    lane.give_back("a", 0, 1)
    assert lane.available


def test_a_request_that_is_kept_ends_where_another_reader_comes_to_watch():
    lane, kept = Lane(), Request("a", want=10)
    lane.ask(kept)
    lane.offer(offer(b"1"))
    assert kept.kept
    lane.open("b")
    assert only(lane.ask(standing("b")), Nothing) == [Nothing(kept)]


def test_a_reader_that_is_gone_is_told_nothing():
    lane, (_, second) = watched()
    lane.offer(offer(b"1"))
    lane.lose("a")
    lane.take_now()
    assert lane.advance() == [Unready(second)]


def test_watchers_hear_of_the_end():
    lane, (first, second) = watched()
    assert lane.close_writers() == [End(first), End(second)]
