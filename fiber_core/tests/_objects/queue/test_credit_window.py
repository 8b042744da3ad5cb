"""Room in a queue, and room that is reserved for writers by credits."""

from collections import deque

import pytest

from fiber._objects.queue.requests import Accepted, Offer, Refused, Revoke, StartTimer
from fiber._objects.queue.state import CreditWindow, QueueState
from fiber.exceptions import WireError


def offer(*items, writer="writer", wait=True):
    return Offer(writer, deque(items), wait=wait)


def granted(maxsize=10):
    """A queue that granted credit to a writer."""
    state = QueueState(maxsize=maxsize)
    state.offer(offer(b"1"))
    assert state.grant("writer") == (maxsize - 1) // 2
    return state


def test_a_writer_is_granted_half_of_what_is_left():
    window = CreditWindow(maxsize=100, max_bytes=0)

    assert window.grant("a", 20) == 40
    assert window.grant("b", 20) == 13
    assert window.room(20, 0) == 27


def test_no_credit_is_granted_where_there_is_no_limit_or_a_writer_waits():
    assert CreditWindow(maxsize=0, max_bytes=0).grant("a", 0) == 0
    window = CreditWindow(maxsize=10, max_bytes=0)
    window.waiting.append(offer(b"1"))
    assert window.grant("a", 0) == 0
    assert CreditWindow(maxsize=1, max_bytes=0).grant("a", 1) == 0


def test_as_much_as_the_credit_is_sent_without_an_offer():
    state = granted()
    sent = offer(*[b"x"] * 4)
    assert state.put(sent) == [Accepted(sent)]

    with pytest.raises(WireError, match="sends 1 items, 0 were set aside"):
        state.put(offer(b"x"))


def test_credit_is_revoked_when_another_writer_finds_no_room():
    state = granted(maxsize=3)
    other = offer(b"2", b"3", writer="other")

    assert state.offer(other) == [Revoke("writer")]
    assert state.return_credit("writer", 1) == [Accepted(other)]


def test_credit_is_revoked_once():
    state = granted(maxsize=3)
    state.offer(offer(b"2", b"3", writer="other"))

    assert state.advance() == []


def test_one_that_does_not_wait_is_refused_only_when_credit_was_returned():
    state = granted(maxsize=3)
    assert state.put_now(b"2")
    hasty = offer(b"3", writer="other", wait=False)
    assert state.offer(hasty) == [Revoke("writer"), StartTimer()]

    assert state.return_credit("writer", 1) == [Accepted(hasty)]


def test_one_that_does_not_wait_is_not_held_up_by_a_writer_that_does_not_answer():
    state = granted(maxsize=3)
    assert state.put_now(b"2")
    hasty = offer(b"3", writer="other", wait=False)
    hasty.retries_left = 2
    state.offer(hasty)
    assert state.on_timer() == [StartTimer()]

    assert state.on_timer() == [Refused(hasty)]


def test_room_of_a_lost_writer_is_free_again():
    state = granted(maxsize=3)
    state.put_now(b"2")
    assert not state.has_room

    state.remove_writer("writer")
    assert state.has_room


def test_returning_more_than_there_is_returns_all():
    state = granted()
    state.return_credit("writer", 1000)

    with pytest.raises(WireError):
        state.put(offer(b"x"))
