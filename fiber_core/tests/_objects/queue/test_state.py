"""One direction of a queue at its owner: order, room, credits, recalls, the end, polling."""

import pytest

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    Accepted,
    Broken,
    Deliver,
    Drop,
    End,
    Nothing,
    Ready,
    Recall,
    Refused,
    Request,
    Revoke,
    StartTimer,
    Unready,
)
from fiber._objects.queue.state import MAX_DELIVERY, CreditWindow, InFlight, QueueState
from fiber._wire import codec
from fiber.exceptions import WireError
from queue_states import filled, given, offer, only


def test_an_item_goes_to_the_one_that_has_waited_longest():
    state = QueueState()
    first, second = Request("a"), Request("b")
    state.request(first)
    state.request(second)

    out = state.offer(offer(b"1"))

    assert [one.request for one in only(out, Deliver)] == [first]


@pytest.mark.parametrize(
    "items, readers, wanted, count",
    [
        ([b"x"] * 10, "a", 3, 3),
        ([b"x"] * 8, "ab", 100, 4),
        ([bytes(MAX_DELIVERY // 2)] * 10, "a", 100, 2),
        ([bytes(4 * MAX_DELIVERY)], "a", 1, 1),
    ],
    ids=["what it wants", "its share", "so many bytes", "one of any size"],
)
def test_a_reader_gets_as_many_as_are_its_own(items, readers, wanted, count):
    state = filled(*items)
    for reader in readers:
        state.add_reader(reader)

    assert len(given(state.request(Request("a", max_items=wanted)))) == count


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


def test_who_asks_alone_for_long_is_sent_items_unasked_until_another_one_asks():
    state = QueueState()
    state.add_reader("writes")
    asked = 0
    while (delivery := state.deliver_now(b"1")) is None:
        state.request(Request("reads", max_items=4), asked)
        asked += len(given(state.offer(offer(b"1"))))
        assert asked < 20
    assert delivery.request.reader == "reads" and delivery.kept

    other = Request("writes")
    assert Nothing(delivery.request) in state.request(other)
    assert state.deliver_now(b"2") is None
    assert [one.request for one in only(state.offer(offer(b"2")), Deliver)] == [other]


def test_who_polls_beside_others_is_notified_however_often_it_asked():
    state = QueueState()
    state.add_reader("other")
    for number in range(20):
        state.request(Request("polls", max_items=4), number)
        state.offer(offer(b"1"))
    state.request(Request("polls", mode=Mode.STANDING), 20)

    assert state.deliver_now(b"1") is None
    assert only(state.offer(offer(b"1")), Ready)


def test_an_item_that_a_thread_did_not_take_after_all_is_the_first_again():
    state = filled(b"1", b"2", b"3")
    taken = state.take_now()
    state.undo_take(taken)

    assert [state.take_now() for _ in range(3)] == [b"1", b"2", b"3"]


def test_cancelling_all_of_a_reader_answers_it_alone():
    state = QueueState()
    mine, other = Request("a"), Request("b")
    state.request(mine)
    state.request(other)

    assert state.cancel_all("a") == [Nothing(mine)]
    assert [one.request for one in only(state.offer(offer(b"1")), Deliver)] == [other]


def test_writers_wait_for_room_and_come_in_in_their_order():
    state = filled(b"1", maxsize=1)
    second, third = offer(b"2"), offer(b"3")
    assert state.offer(second) == []
    assert state.offer(third) == []
    late = offer(b"4", wait=False)
    assert state.offer(late) == [Refused(late)], "no writer overtakes one that waits"

    assert state.take_now() == b"1"
    assert not state.put_now(b"4")
    assert state.advance() == [Accepted(second)]
    assert state.take_now() == b"2"
    assert state.advance() == [Accepted(third)]


def test_a_queue_bounded_in_bytes_lets_one_item_of_any_size_in():
    state = QueueState(max_bytes=10)
    assert state.put_now(bytes(100))
    assert not state.put_now(b"x")

    waiting = offer(b"x")
    assert state.offer(waiting) == []
    state.take_now()
    assert state.advance() == [Accepted(waiting)]


def test_what_a_lost_reader_had_not_handed_out_comes_first_again():
    state = filled(b"1", b"2", b"3", b"4", b"5")
    state.request(Request("a", max_items=3))
    state.settle("a", 1)
    state.request(Request("a"), 2)
    state.remove_reader("a")

    # and it begins anew where it comes again
    (give,) = only(state.request(Request("a")), Deliver)
    assert (give.first, give.items) == (1, [b"3"])
    assert [state.take_now() for _ in range(3)] == [b"4", b"5", None]


def test_items_of_two_lost_readers_come_back_in_their_first_order():
    state = filled(*(str(n).encode() for n in range(8)))
    state.add_reader("a")
    state.add_reader("b")
    for reader in ("a", "b", "a", "b"):
        state.request(Request(reader, max_items=1), 0)
    state.remove_reader("b")
    state.remove_reader("a")

    assert [state.take_now() for _ in range(8)] == [str(n).encode() for n in range(8)]


def test_the_loss_of_an_unknown_reader_is_nothing():
    assert QueueState().remove_reader("nobody") == []
    assert QueueState().settle("nobody", 5) == []
    assert QueueState().give_back("nobody", 5, 6) == []


# -- room that is reserved for writers by credits


def granted(maxsize=10):
    """A queue that granted credit to a writer."""
    state = QueueState(maxsize=maxsize)
    state.offer(offer(b"1"))
    assert state.grant("writer") == (maxsize - 1) // 2
    return state


def test_a_writer_is_granted_a_share_of_what_is_left_unless_another_waits():
    window = CreditWindow(maxsize=100, max_bytes=0)

    assert window.grant("a", 20) == 40
    assert window.grant("b", 20) == 13
    assert window.room(20, 0) == 27
    assert window.grant("c", 73) == 0
    window.waiting.append(offer(b"1"))
    assert window.grant("c", 0) == 0
    assert CreditWindow(maxsize=0, max_bytes=0).grant("a", 0) == 0


@pytest.mark.parametrize("returned", [0, 1000])
def test_as_much_as_the_credit_is_sent_without_an_offer(returned):
    state = granted()
    if returned:
        state.return_credit("writer", returned)
    else:
        sent = offer(*[b"x"] * 4)
        assert state.put(sent) == [Accepted(sent)]

    with pytest.raises(WireError, match="sends 1 items, 0 were set aside"):
        state.put(offer(b"x"))


def test_credit_is_revoked_once_when_another_writer_finds_no_room():
    state = granted(maxsize=3)
    other = offer(b"2", b"3", writer="other")

    assert state.offer(other) == [Revoke("writer")]
    assert state.advance() == []
    assert state.return_credit("writer", 1) == [Accepted(other)]


def hasty_offer():
    """A queue whose room is a writer's credit, and an offer of another that does not wait."""
    state = granted(maxsize=3)
    assert state.put_now(b"2")
    hasty = offer(b"3", writer="other", wait=False)
    hasty.retries_left = 2
    assert state.offer(hasty) == [Revoke("writer"), StartTimer()]
    return state, hasty


@pytest.mark.parametrize("end", ["returned", "lost"])
def test_one_that_does_not_wait_is_not_refused_before_credit_was_returned(end):
    state, hasty = hasty_offer()
    assert not state.has_room
    out = state.return_credit("writer", 1) if end == "returned" else state.remove_writer("writer")

    assert out == [Accepted(hasty)]


def test_one_that_does_not_wait_is_not_held_up_by_a_writer_that_does_not_answer():
    state, hasty = hasty_offer()
    assert state.on_timer() == [StartTimer()]

    assert state.on_timer() == [Refused(hasty)]


# -- deliveries that are not settled


def positioned(*numbers):
    return [(number, str(number).encode()) for number in numbers]


def test_what_is_given_back_comes_in_order_and_the_rest_stays_out():
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3, 4))
    in_flight.recalled = True

    assert in_flight.give_back(1, 3) == positioned(2, 3)
    assert not in_flight.recalled
    # old news of settling changes nothing
    for upto in (0, 3):
        in_flight.settle(upto)
    assert in_flight.unconsumed() == positioned(4)


@pytest.mark.parametrize(
    "event, numbers, error",
    [
        ("settle", [4], "settles 4 items of 3"),
        ("give_back", [3, 2], "gives back"),
        ("give_back", [2, 5], "gives back"),
        ("give_back", [0, 1], "gives back"),
    ],
    ids=["settled beyond", "backwards", "beyond", "settled before"],
)
def test_what_a_reader_says_of_items_that_it_does_not_have_is_refused(event, numbers, error):
    in_flight = InFlight()
    in_flight.deliver(positioned(7, 8, 9))
    in_flight.settle(2)

    with pytest.raises(WireError, match=error):
        getattr(in_flight, event)(*numbers)


@pytest.mark.parametrize(
    "notes, left",
    [((2, 0, 0), [3, 4, 5]), ((4, 1, 3), [2, 3, 5]), ((2**60, 0, 0), [])],
    ids=["handed out", "given back before others were", "beyond what was given"],
)
def test_the_readers_own_notes_decide_what_it_had_not_handed_out(notes, left):
    in_flight = InFlight(lambda: notes)
    in_flight.deliver(positioned(1, 2, 3, 4, 5))

    assert in_flight.prefetched() == len(left)
    assert in_flight.unconsumed() == positioned(*left)


def parked(*items):
    """A queue whose items reader a has fetched."""
    state = filled(*items)
    state.request(Request("a", max_items=len(items)))
    return state


def standing(reader):
    return Request(reader, mode=Mode.STANDING)


@pytest.mark.parametrize(
    "waiting, answer",
    [
        (Request("b"), lambda request: Deliver(request, 1, [b"2"])),
        (Request(None), lambda request: Deliver(request, 0, [b"2"])),
        (standing("b"), Ready),
    ],
    ids=["a reader", "a thread of the owner", "one that polls"],
)
def test_one_that_waits_has_parked_items_recalled_after_a_moment(waiting, answer):
    state = parked(b"1", b"2", b"3", b"4")
    assert state.request(waiting) == [StartTimer()]

    assert state.on_timer() == [Recall("a")]
    # nobody is asked twice before it has answered
    assert only(state.advance() + state.on_timer(), Recall) == []
    assert answer(waiting) in state.give_back("a", 1, 4)


@pytest.mark.parametrize("answers", [True, False])
def test_one_that_does_not_wait_gets_what_others_have_parked_if_they_answer(answers):
    state = parked(b"1")
    request = Request("b", mode=Mode.NOWAIT, retries_left=2)
    assert state.request(request) == [Recall("a"), StartTimer()]
    assert state.on_timer() == [StartTimer()]

    if answers:
        assert given(state.give_back("a", 0, 1)) == [b"1"]
    else:
        assert state.on_timer() == [Nothing(request)]


def test_those_who_wait_hear_of_the_end_at_once():
    state = QueueState()
    requests = [Request("a"), Request(None), standing("b")]
    for request in requests:
        state.request(request)

    assert state.close_writers() == [End(request) for request in requests]


def test_it_is_not_the_end_while_another_reader_may_give_something_back():
    state = parked(b"1")
    state.close_writers()
    waiting = Request("b")
    assert state.request(waiting) == [StartTimer()]

    assert state.on_timer() == [Recall("a")]
    assert state.give_back("a", 1, 1) == [End(waiting)]


def test_it_is_not_the_end_while_a_writer_waits_for_room():
    state = filled(b"1", maxsize=1)
    state.offer(offer(b"2"))
    state.close_writers()

    assert not state.has_ended
    assert state.take_now() == b"1"
    state.advance()
    assert state.take_now() == b"2"
    assert state.has_ended


def test_without_readers_everything_is_dropped_and_writers_are_refused():
    state = filled(b"1", b"2", maxsize=2)
    state.request(Request("a"))
    waiting = offer(b"3")
    state.offer(waiting)

    assert state.close_readers() == [Broken(waiting), Drop([b"3", b"2"])]
    late = offer(b"4")
    assert state.offer(late) == [Broken(late), Drop([b"4"])]
    assert not state.put_now(b"5")
    # and what the last one had fetched
    assert state.remove_reader("a") == [Drop([b"1"])]


def kept(*, max_items=10):
    """A state whose only reader has got one item and is good for more."""
    state = QueueState()
    request = Request("a", max_items=max_items)
    state.request(request)
    (_, give) = state.offer(offer(b"1"))
    assert give == Deliver(request, 1, [b"1"], kept=True)
    return state, request


def test_the_only_reader_gets_what_comes_next_as_far_as_it_asked_for_it():
    state, request = kept(max_items=3)

    assert Deliver(request, 2, [b"2"], kept=True) in state.offer(offer(b"2"))
    assert Deliver(request, 3, [b"3"], kept=False) in state.offer(offer(b"3"))
    assert only(state.offer(offer(b"4")), Deliver) == []


def test_another_reader_that_waits_ends_it():
    state, request = kept()
    other = Request("b")

    assert Nothing(request) in state.request(other)
    assert [one.request for one in only(state.offer(offer(b"2")), Deliver)] == [other]


def test_a_reader_that_gives_back_does_not_get_it_again_at_once():
    state, request = kept()

    assert state.give_back("a", 0, 1) == [Nothing(request)]
    assert state.take_now() == b"1"


@pytest.mark.parametrize("others, item", [("b", b"1"), ("", bytes(2**20))])
def test_with_several_readers_or_large_items_nothing_is_kept(others, item):
    state = QueueState()
    for other in others:
        state.add_reader(other)
    state.request(Request("a", max_items=10))
    assert [one.kept for one in only(state.offer(offer(item)), Deliver)] == [False]


def test_a_kept_request_recalls_nothing_and_gets_the_end():
    state, request = kept()
    state.add_reader("b")

    assert state.close_writers() == [End(request)]


# -- readers that poll a descriptor: an only one is sent items, several are notified


def polled():
    """A queue that two readers poll."""
    state, pollers = QueueState(), [standing("a"), standing("b")]
    for name in "ab":
        state.add_reader(name)
    for one in pollers:
        assert state.request(one) == []
    return state, pollers


def test_several_are_notified_once_and_the_first_request_gets_it():
    state, (first, second) = polled()
    assert only(state.offer(offer(b"1")), Deliver, Ready) == [Ready(first), Ready(second)]
    assert only(state.offer(offer(b"2")), Ready) == []

    request = Request("b", max_items=2)
    assert only(state.request(request), Deliver) == [Deliver(request, 1, [b"1"])]
    # the one that asked knows
    assert only(state.request(Request("b")), Unready) == [Unready(first)]


def test_a_reader_alone_is_sent_what_comes_until_threads_of_the_owner_poll():
    state, request = QueueState(), standing("a")
    state.request(request)
    assert only(state.offer(offer(b"1")), Deliver) == [Deliver(request, 1, [b"1"])]

    assert state.set_owner_polls(True) == [StartTimer()]
    assert state.on_timer() == [Recall("a")]
    state.give_back("a", 0, 1)
    assert state.available == 1
    again = standing("a")
    assert state.request(again, 1) == [Ready(again)]


def test_a_request_that_is_kept_ends_where_another_reader_comes_to_poll():
    state, request = kept()
    state.add_reader("b")
    assert only(state.request(standing("b")), Nothing) == [Nothing(request)]


@pytest.mark.parametrize("gone", [[], ["a"]])
def test_what_a_thread_of_the_owner_takes_is_not_there_for_those_that_poll(gone):
    state, pollers = polled()
    state.offer(offer(b"1"))
    for reader in gone:
        state.remove_reader(reader)
    assert state.pollers
    state.take_now()
    assert state.advance() == [Unready(one) for one in pollers if one.reader not in gone]
    assert not state.pollers


def test_what_was_answered_already_can_neither_be_withdrawn_nor_cancelled():
    state = QueueState()
    first, taken = Request("a"), offer(b"1")
    state.request(first)
    state.offer(taken)

    assert not state.cancel(first)
    assert not state.window.withdraw(taken)
    assert state.window.find(taken.writer, taken.number) is None
