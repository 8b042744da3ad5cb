"""One direction of a queue at its owner: order, room, who gets what, what comes back."""

import pytest

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import Accepted, Deliver, Nothing, Refused, Request
from fiber._objects.queue.state import MAX_DELIVERY, QueueState
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


def test_settling_what_was_not_given_is_refused():
    state = filled(b"1")

    with pytest.raises(WireError):
        state.request(Request("a"), 1)
