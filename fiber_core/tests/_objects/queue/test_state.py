"""One direction of a queue at its owner: order, room, who gets what, what comes back."""

import pytest

from fiber._objects.protocol import Mode
from fiber._objects.queue.in_flight import InFlight
from fiber._objects.queue.requests import (
    Accepted,
    Deliver,
    Nothing,
    Refused,
    Request,
    Revoke,
    StartTimer,
)
from fiber._objects.queue.state import MAX_DELIVERY, CreditWindow, QueueState
from fiber._wire import codec
from fiber.exceptions import WireError
from queue_states import filled, given, offer, only

# -- order and hand-over


def test_items_come_out_as_they_went_in():
    state = filled(b"1", b"2")
    state.offer(offer(b"3", b"4"))

    assert [state.take_now() for _ in range(5)] == [b"1", b"2", b"3", b"4", None]


def test_an_item_goes_to_the_one_that_has_waited_longest():
    state = QueueState()
    first, second = Request("a"), Request("b")
    state.request(first)
    state.request(second)

    out = state.offer(offer(b"1"))

    assert [one.request for one in only(out, Deliver)] == [first]


def test_a_put_that_somebody_waits_for_does_not_take_the_short_way():
    state = QueueState()
    state.request(Request(None))

    assert not state.put_now(b"1")


def test_a_reader_gets_as_many_as_it_wants_and_no_more():
    state = filled(*[b"x"] * 10)
    state.add_reader("a")

    assert len(given(state.request(Request("a", max_items=3)))) == 3


def test_the_last_items_are_spread_over_the_readers():
    state = filled(*[b"x"] * 8)
    state.add_reader("a")
    state.add_reader("b")

    assert len(given(state.request(Request("a", max_items=100)))) == 4


NONE = bytes(codec.pickled(None))


def test_one_of_several_readers_gets_nothing_that_comes_after_a_none():
    state = filled(NONE, b"1", b"2", b"3", b"4", NONE)
    state.add_reader("a")
    state.add_reader("b")

    assert given(state.request(Request("a", max_items=9))) == [NONE]
    # whoever has stopped there holds nothing that the other one, at the last None, would miss
    assert given(state.request(Request("b", max_items=9))) == [b"1", b"2"]


def test_the_only_reader_gets_what_comes_after_a_none():
    state = filled(NONE, b"1", NONE)

    assert given(state.request(Request("a", max_items=9))) == [NONE, b"1", NONE]


def test_a_delivery_of_large_items_is_bounded_in_bytes():
    state = filled(*[bytes(MAX_DELIVERY // 2)] * 10)

    assert len(given(state.request(Request("a", max_items=100)))) == 2


def test_an_item_of_any_size_is_delivered():
    state = filled(bytes(4 * MAX_DELIVERY))

    assert len(given(state.request(Request("a")))) == 1


def test_an_item_that_a_thread_did_not_take_after_all_is_the_first_again():
    state = filled(b"1", b"2", b"3")
    taken = state.take_now()
    state.undo_take(taken)

    assert [state.take_now() for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_peek_takes_nothing():
    state = filled(b"1")
    peek = Request(None, peek=True)

    assert state.request(peek) == [Deliver(peek, 0, [])]
    assert state.take_now() == b"1"


def test_a_cancelled_request_gets_nothing():
    state = QueueState()
    request = Request("a")
    state.request(request)
    assert state.cancel(request)

    assert only(state.offer(offer(b"1")), Deliver) == []
    assert not state.cancel(request)


def test_cancelling_all_of_a_reader_answers_it_alone():
    state = QueueState()
    mine, other = Request("a"), Request("b")
    state.request(mine)
    state.request(other)

    assert state.cancel_all("a") == [Nothing(mine)]
    assert [one.request for one in only(state.offer(offer(b"1")), Deliver)] == [other]


def test_one_that_does_not_wait_is_answered_at_once():
    request = Request("a", mode=Mode.NOWAIT)

    assert QueueState().request(request) == [Nothing(request)]


# -- room


def test_writers_wait_for_room_and_come_in_in_their_order():
    state = filled(b"1", maxsize=1)
    second, third = offer(b"2"), offer(b"3")
    assert state.offer(second) == []
    assert state.offer(third) == []
    assert state.has_waiting_writers

    assert state.take_now() == b"1"
    assert state.advance() == [Accepted(second)]
    assert state.take_now() == b"2"
    assert state.advance() == [Accepted(third)]


def test_no_writer_overtakes_one_that_waits():
    state = filled(b"1", maxsize=1)
    state.offer(offer(b"2"))

    assert not state.put_now(b"3")
    late = offer(b"3", wait=False)
    assert state.offer(late) == [Refused(late)]


def test_an_offer_larger_than_the_room_comes_in_piece_by_piece():
    state = QueueState(maxsize=2)
    large = offer(b"1", b"2", b"3")
    assert state.offer(large) == []
    assert state.take_now() == b"1"

    assert state.advance() == [Accepted(large)]
    assert [state.take_now(), state.take_now()] == [b"2", b"3"]


def test_what_a_reader_has_fetched_and_not_handed_out_takes_room():
    state = filled(b"1", maxsize=1)
    state.request(Request("a"))
    waiting = offer(b"2")
    assert state.offer(waiting) == []
    assert state.size == 1

    assert Accepted(waiting) in state.settle("a", 1)


def test_a_queue_bounded_in_bytes_lets_one_item_of_any_size_in():
    state = QueueState(max_bytes=10)
    assert state.put_now(bytes(100))
    assert not state.put_now(b"x")

    waiting = offer(b"x")
    assert state.offer(waiting) == []
    state.take_now()
    assert state.advance() == [Accepted(waiting)]


def test_a_waiting_offer_can_be_taken_back_once():
    state = filled(b"1", maxsize=1)
    waiting = offer(b"2")
    state.offer(waiting)
    assert state.window.find("writer", 0) is waiting

    assert state.window.withdraw(waiting)
    assert not state.window.withdraw(waiting)
    assert state.window.find("writer", 0) is None


# -- what comes back


def test_what_a_lost_reader_had_not_handed_out_comes_first_again():
    state = filled(b"1", b"2", b"3", b"4")
    state.request(Request("a", max_items=3))
    state.settle("a", 1)
    state.remove_reader("a")

    assert [state.take_now() for _ in range(4)] == [b"2", b"3", b"4", None]


def test_items_of_two_lost_readers_come_back_in_their_first_order():
    state = filled(*(str(n).encode() for n in range(8)))
    state.add_reader("a")
    state.add_reader("b")
    for reader in ("a", "b", "a", "b"):
        state.request(Request(reader, max_items=1), 0)
    state.remove_reader("b")
    state.remove_reader("a")

    assert [state.take_now() for _ in range(8)] == [str(n).encode() for n in range(8)]


def test_a_reader_that_comes_again_after_its_loss_begins_anew():
    state = filled(b"1", b"2")
    state.request(Request("a"))
    state.remove_reader("a")

    (give,) = only(state.request(Request("a")), Deliver)
    assert (give.first, give.items) == (1, [b"1"])


def test_the_loss_of_an_unknown_reader_is_nothing():
    assert QueueState().remove_reader("nobody") == []
    assert QueueState().settle("nobody", 5) == []
    assert QueueState().give_back("nobody", 5, 6) == []


def test_settling_with_the_next_request():
    state = filled(b"1", b"2")
    state.request(Request("a"))
    state.request(Request("a"), 1)
    state.remove_reader("a")

    assert state.take_now() == b"2"


# -- room that is reserved for writers by credits


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


# -- deliveries that are not settled


def positioned(*numbers):
    return [(number, str(number).encode()) for number in numbers]


def test_deliveries_are_numbered_from_one_on():
    in_flight = InFlight()

    assert in_flight.deliver(positioned(7, 8)) == 1
    assert in_flight.deliver(positioned(9)) == 3


def test_what_is_settled_does_not_come_back():
    in_flight = InFlight()
    in_flight.deliver(positioned(7, 8, 9))
    in_flight.settle(2)

    assert in_flight.prefetched() == 1
    assert in_flight.unconsumed() == positioned(9)


def test_old_news_of_settling_changes_nothing():
    in_flight = InFlight()
    in_flight.deliver(positioned(7, 8, 9))
    in_flight.settle(2)
    in_flight.settle(1)

    assert in_flight.settled == 2


def test_settling_more_than_was_given_is_refused():
    in_flight = InFlight()
    in_flight.deliver(positioned(7))

    with pytest.raises(WireError, match="settles 2 items of 1"):
        in_flight.settle(2)


def test_what_is_given_back_comes_in_order_and_the_rest_stays_out():
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3, 4))
    in_flight.recalled = True

    assert in_flight.give_back(1, 3) == positioned(2, 3)
    assert not in_flight.recalled
    assert in_flight.unconsumed() == positioned(4)


@pytest.mark.parametrize("after,upto", [(2, 1), (0, 5)])
def test_giving_back_what_was_not_given_is_refused(after, upto):
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3))

    with pytest.raises(WireError, match="gives back"):
        in_flight.give_back(after, upto)


def test_giving_back_what_was_settled_is_refused():
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3))
    in_flight.settle(2)

    with pytest.raises(WireError, match="gives back"):
        in_flight.give_back(0, 1)


def test_the_readers_own_notes_decide_what_it_had_not_handed_out():
    in_flight = InFlight(lambda: (2, 0, 0))
    in_flight.deliver(positioned(1, 2, 3))

    assert in_flight.prefetched() == 1
    assert in_flight.unconsumed() == positioned(3)


def test_what_the_reader_noted_to_give_back_remains_although_later_ones_were_handed_out():
    in_flight = InFlight(lambda: (4, 1, 3))
    in_flight.deliver(positioned(1, 2, 3, 4, 5))

    assert in_flight.prefetched() == 3
    assert in_flight.unconsumed() == positioned(2, 3, 5)


def test_notes_beyond_what_was_given_are_not_believed():
    in_flight = InFlight(lambda: (2**60, 0, 0))
    in_flight.deliver(positioned(1))

    assert in_flight.prefetched() == 0
