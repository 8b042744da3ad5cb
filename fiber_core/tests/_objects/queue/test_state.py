"""One lane at its owner: order, room, who gets what, what comes back."""

from collections import deque

import pytest

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import Accepted, Give, Nothing, Offer, Refused, Request
from fiber._objects.queue.state import MAX_DELIVERY, Lane
from fiber._wire import codec
from fiber.exceptions import WireError


def offer(*items, wait=True):
    return Offer("writer", deque(items), wait=wait)


def filled(*items, **limits):
    lane = Lane(**limits)
    for item in items:
        assert lane.put_now(item)
    return lane


def only(instructions, kind):
    return [one for one in instructions if isinstance(one, kind)]


def given(instructions):
    return [item for one in only(instructions, Give) for item in one.items]


# -- order and hand-over


def test_items_come_out_as_they_went_in():
    lane = filled(b"1", b"2")
    lane.offer(offer(b"3", b"4"))

    assert [lane.take_now() for _ in range(5)] == [b"1", b"2", b"3", b"4", None]


def test_an_item_goes_to_the_one_that_has_waited_longest():
    lane = Lane()
    first, second = Request("a"), Request("b")
    lane.ask(first)
    lane.ask(second)

    out = lane.offer(offer(b"1"))

    assert [one.request for one in only(out, Give)] == [first]


def test_a_put_that_somebody_waits_for_does_not_take_the_short_way():
    lane = Lane()
    lane.ask(Request(None))

    assert not lane.put_now(b"1")


def test_a_reader_gets_as_many_as_it_wants_and_no_more():
    lane = filled(*[b"x"] * 10)
    lane.open("a")

    assert len(given(lane.ask(Request("a", want=3)))) == 3


def test_the_last_items_are_spread_over_the_readers():
    lane = filled(*[b"x"] * 8)
    lane.open("a")
    lane.open("b")

    assert len(given(lane.ask(Request("a", want=100)))) == 4


NONE = bytes(codec.pickled(None))


def test_one_of_several_readers_gets_nothing_that_comes_after_a_none():
    lane = filled(NONE, b"1", b"2", b"3", b"4", NONE)
    lane.open("a")
    lane.open("b")

    assert given(lane.ask(Request("a", want=9))) == [NONE]
    # whoever has stopped there holds nothing that the other one, at the last None, would miss
    assert given(lane.ask(Request("b", want=9))) == [b"1", b"2"]


def test_the_only_reader_gets_what_comes_after_a_none():
    lane = filled(NONE, b"1", NONE)

    assert given(lane.ask(Request("a", want=9))) == [NONE, b"1", NONE]


def test_a_delivery_of_large_items_is_bounded_in_bytes():
    lane = filled(*[bytes(MAX_DELIVERY // 2)] * 10)

    assert len(given(lane.ask(Request("a", want=100)))) == 2


def test_an_item_of_any_size_is_delivered():
    lane = filled(bytes(4 * MAX_DELIVERY))

    assert len(given(lane.ask(Request("a")))) == 1


def test_an_item_that_a_thread_did_not_take_after_all_is_the_first_again():
    lane = filled(b"1", b"2", b"3")
    taken = lane.take_now()
    lane.untake(taken)

    assert [lane.take_now() for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_peek_takes_nothing():
    lane = filled(b"1")
    peek = Request(None, peek=True)

    assert lane.ask(peek) == [Give(peek, 0, [])]
    assert lane.take_now() == b"1"


def test_a_cancelled_request_gets_nothing():
    lane = Lane()
    request = Request("a")
    lane.ask(request)
    assert lane.cancel(request)

    assert only(lane.offer(offer(b"1")), Give) == []
    assert not lane.cancel(request)


def test_cancelling_all_of_a_reader_answers_it_alone():
    lane = Lane()
    mine, other = Request("a"), Request("b")
    lane.ask(mine)
    lane.ask(other)

    assert lane.cancel_all("a") == [Nothing(mine)]
    assert [one.request for one in only(lane.offer(offer(b"1")), Give)] == [other]


def test_one_that_does_not_wait_is_told_that_there_is_nothing():
    request = Request("a", mode=Mode.NOWAIT)

    assert Lane().ask(request) == [Nothing(request)]


# -- room


def test_writers_wait_for_room_and_come_in_in_their_order():
    lane = filled(b"1", maxsize=1)
    second, third = offer(b"2"), offer(b"3")
    assert lane.offer(second) == []
    assert lane.offer(third) == []
    assert lane.holds

    assert lane.take_now() == b"1"
    assert lane.advance() == [Accepted(second)]
    assert lane.take_now() == b"2"
    assert lane.advance() == [Accepted(third)]


def test_no_writer_overtakes_one_that_waits():
    lane = filled(b"1", maxsize=1)
    lane.offer(offer(b"2"))

    assert not lane.put_now(b"3")
    late = offer(b"3", wait=False)
    assert lane.offer(late) == [Refused(late)]


def test_an_offer_larger_than_the_room_comes_in_piece_by_piece():
    lane = Lane(maxsize=2)
    large = offer(b"1", b"2", b"3")
    assert lane.offer(large) == []
    assert lane.take_now() == b"1"

    assert lane.advance() == [Accepted(large)]
    assert [lane.take_now(), lane.take_now()] == [b"2", b"3"]


def test_what_a_reader_has_fetched_and_not_handed_out_takes_room():
    lane = filled(b"1", maxsize=1)
    lane.ask(Request("a"))
    waiting = offer(b"2")
    assert lane.offer(waiting) == []
    assert lane.size == 1

    assert Accepted(waiting) in lane.settle("a", 1)


def test_a_lane_bounded_in_bytes_lets_one_item_of_any_size_in():
    lane = Lane(max_bytes=10)
    assert lane.put_now(bytes(100))
    assert not lane.put_now(b"x")

    waiting = offer(b"x")
    assert lane.offer(waiting) == []
    lane.take_now()
    assert lane.advance() == [Accepted(waiting)]


def test_a_waiting_offer_can_be_taken_back_once():
    lane = filled(b"1", maxsize=1)
    waiting = offer(b"2")
    lane.offer(waiting)
    assert lane.gate.find("writer", 0) is waiting

    assert lane.gate.withdraw(waiting)
    assert not lane.gate.withdraw(waiting)
    assert lane.gate.find("writer", 0) is None


# -- what comes back


def test_what_a_lost_reader_had_not_handed_out_comes_first_again():
    lane = filled(b"1", b"2", b"3", b"4")
    lane.ask(Request("a", want=3))
    lane.settle("a", 1)
    lane.lose("a")

    assert [lane.take_now() for _ in range(4)] == [b"2", b"3", b"4", None]


def test_items_of_two_lost_readers_come_back_in_their_first_order():
    lane = filled(*(str(n).encode() for n in range(8)))
    lane.open("a")
    lane.open("b")
    for reader in ("a", "b", "a", "b"):
        lane.ask(Request(reader, want=1), 0)
    lane.lose("b")
    lane.lose("a")

    assert [lane.take_now() for _ in range(8)] == [str(n).encode() for n in range(8)]


def test_a_reader_that_comes_again_after_its_loss_begins_anew():
    lane = filled(b"1", b"2")
    lane.ask(Request("a"))
    lane.lose("a")

    (give,) = only(lane.ask(Request("a")), Give)
    assert (give.first, give.items) == (1, [b"1"])


def test_the_loss_of_an_unknown_reader_is_nothing():
    assert Lane().lose("nobody") == []
    assert Lane().settle("nobody", 5) == []
    assert Lane().give_back("nobody", 5, 6) == []


def test_settling_with_the_next_request():
    lane = filled(b"1", b"2")
    lane.ask(Request("a"))
    lane.ask(Request("a"), 1)
    lane.lose("a")

    assert lane.take_now() == b"2"


def test_settling_what_was_not_given_is_refused():
    lane = filled(b"1")

    with pytest.raises(WireError):
        lane.ask(Request("a"), 1)
