"""Room in a lane, and room that is set aside for writers."""

from collections import deque

import pytest

from fiber._objects.queue.requests import Accepted, Offer, Refused, Revoke, Watch
from fiber._objects.queue.state import Gate, Lane
from fiber.exceptions import WireError


def offer(*items, writer="writer", wait=True):
    return Offer(writer, deque(items), wait=wait)


def asked(maxsize=10):
    """A lane, a writer of which had to ask and has room set aside now."""
    lane = Lane(maxsize=maxsize)
    lane.offer(offer(b"1"))
    assert lane.grant("writer") == (maxsize - 1) // 2
    return lane


def test_a_writer_that_asked_gets_half_of_what_is_left():
    gate = Gate(maxsize=100, max_bytes=0)

    assert gate.grant("a", 20) == 40
    assert gate.grant("b", 20) == 13
    assert gate.room(20, 0) == 27


def test_nothing_is_set_aside_where_there_is_no_limit_or_somebody_waits():
    assert Gate(maxsize=0, max_bytes=0).grant("a", 0) == 0
    gate = Gate(maxsize=10, max_bytes=0)
    gate.held.append(offer(b"1"))
    assert gate.grant("a", 0) == 0
    assert Gate(maxsize=1, max_bytes=0).grant("a", 1) == 0


def test_what_was_set_aside_is_sent_without_asking_and_no_more():
    lane = asked()
    sent = offer(*[b"x"] * 4)
    assert lane.put(sent) == [Accepted(sent)]

    with pytest.raises(WireError, match="sends 1 items, 0 were set aside"):
        lane.put(offer(b"x"))


def test_it_is_asked_for_when_another_writer_finds_no_room():
    lane = asked(maxsize=3)
    other = offer(b"2", b"3", writer="other")

    assert lane.offer(other) == [Revoke("writer")]
    assert lane.give_up("writer", 1) == [Accepted(other)]


def test_nobody_is_asked_for_it_twice():
    lane = asked(maxsize=3)
    lane.offer(offer(b"2", b"3", writer="other"))

    assert lane.advance() == []


def test_one_that_does_not_wait_is_refused_only_when_it_was_given_up():
    lane = asked(maxsize=3)
    assert lane.put_now(b"2")
    hasty = offer(b"3", writer="other", wait=False)
    assert lane.offer(hasty) == [Revoke("writer"), Watch()]

    assert lane.give_up("writer", 1) == [Accepted(hasty)]


def test_one_that_does_not_wait_is_not_held_up_by_a_writer_that_does_not_answer():
    lane = asked(maxsize=3)
    assert lane.put_now(b"2")
    hasty = offer(b"3", writer="other", wait=False)
    hasty.patience = 2
    lane.offer(hasty)
    assert lane.overdue() == [Watch()]

    assert lane.overdue() == [Refused(hasty)]


def test_room_of_a_lost_writer_is_free_again():
    lane = asked(maxsize=3)
    lane.put_now(b"2")
    assert not lane.has_room

    lane.lose_writer("writer")
    assert lane.has_room


def test_giving_up_more_than_there_is_gives_up_all():
    lane = asked()
    lane.give_up("writer", 1000)

    with pytest.raises(WireError):
        lane.put(offer(b"x"))
