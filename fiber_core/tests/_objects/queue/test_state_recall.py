"""What a state has recalled, how it ends, which requests it keeps, and readers that poll."""

from __future__ import annotations

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    Broken,
    Deliver,
    Drop,
    End,
    Nothing,
    Ready,
    Recall,
    Request,
    StartTimer,
    Unready,
)
from fiber._objects.queue.state import QueueState
from queue_states import filled, given, offer, only


def parked(*items):
    """A queue whose items reader a has fetched."""
    state = filled(*items)
    state.request(Request("a", max_items=len(items)))
    return state


# -- recall


def test_a_reader_that_waits_has_parked_items_recalled_after_a_moment():
    state = parked(b"1", b"2", b"3", b"4")
    waiting = Request("b")
    assert state.request(waiting) == [StartTimer()]

    assert state.on_timer() == [Recall("a")]
    out = state.give_back("a", 1, 4)
    assert [(one.request, one.items) for one in only(out, Deliver)] == [(waiting, [b"2"])]


def test_a_thread_of_the_owner_has_them_recalled_as_well():
    state = parked(b"1")
    assert state.request(Request(None)) == [StartTimer()]
    assert state.on_timer() == [Recall("a")]


def test_nobody_is_asked_twice_before_it_has_answered():
    state = parked(b"1", b"2")
    state.request(Request("b"))
    state.on_timer()

    assert Recall("a") not in state.request(Request("c"))
    assert only(state.on_timer(), Recall) == []


def test_nothing_is_recalled_where_items_were_handed_out_in_the_meantime():
    state = filled(b"1")
    handed_out = [0, 0, 0]
    state.add_reader("a", lambda: tuple(handed_out))
    state.request(Request("a"))
    state.request(Request("b"))
    handed_out[0] = 1

    assert state.on_timer() == []


def test_a_standing_request_recalls_what_others_keep():
    state = parked(b"1")
    watching = Request("b", mode=Mode.STANDING)
    assert state.request(watching) == [StartTimer()]

    assert state.on_timer() == [Recall("a")]
    assert state.give_back("a", 0, 1) == [Ready(watching)]


def test_one_that_does_not_wait_gets_what_others_have_parked():
    state = parked(b"1")
    request = Request("b", mode=Mode.NOWAIT)
    assert state.request(request) == [Recall("a"), StartTimer()]

    assert given(state.give_back("a", 0, 1)) == [b"1"]


def test_one_that_does_not_wait_is_not_held_up_by_a_reader_that_does_not_answer():
    state = parked(b"1")
    request = Request("b", mode=Mode.NOWAIT, retries_left=2)
    state.request(request)
    assert state.on_timer() == [StartTimer()]

    assert state.on_timer() == [Nothing(request)]


# -- the end


def test_readers_hear_of_the_end_after_the_last_item():
    state = filled(b"1")
    state.close_writers()
    first = state.request(Request("a"))
    assert given(first) == [b"1"]

    request = Request("a")
    assert state.request(request, 1) == [End(request)]
    assert state.has_ended


def test_those_who_wait_hear_of_the_end_at_once():
    state = QueueState()
    requests = [Request("a"), Request(None), Request("b", mode=Mode.STANDING)]
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
    state = filled(b"1", maxsize=1)
    waiting = offer(b"2")
    state.offer(waiting)

    assert state.close_readers() == [Broken(waiting), Drop([b"2", b"1"])]
    late = offer(b"3")
    assert state.offer(late) == [Broken(late), Drop([b"3"])]
    assert not state.put_now(b"4")


def test_what_the_last_reader_gives_back_is_dropped_as_well():
    state = parked(b"1")
    state.close_readers()

    assert state.remove_reader("a") == [Drop([b"1"])]


def test_it_is_settled_once_all_was_handed_out():
    state = parked(b"1")
    assert not state.is_settled

    state.settle("a", 1)
    assert state.is_settled


# -- requests that are kept


def kept(*, max_items=10):
    """A state whose only reader has got one item and is good for more."""
    state = QueueState()
    request = Request("a", max_items=max_items)
    state.request(request)
    (_, give) = state.offer(offer(b"1"))
    assert give == Deliver(request, 1, [b"1"], kept=True)
    return state, request


def test_the_only_reader_gets_what_comes_next_without_asking_again():
    state, request = kept()

    assert Deliver(request, 2, [b"2"], kept=True) in state.offer(offer(b"2"))


def test_it_gets_no_more_than_it_asked_for():
    state, request = kept(max_items=2)
    assert Deliver(request, 2, [b"2"], kept=False) in state.offer(offer(b"2"))

    assert only(state.offer(offer(b"3")), Deliver) == []


def test_another_reader_that_waits_ends_it():
    state, request = kept()
    other = Request("b")

    assert Nothing(request) in state.request(other)
    assert [one.request for one in only(state.offer(offer(b"2")), Deliver)] == [other]


def test_a_reader_that_gives_back_does_not_get_it_again_at_once():
    state, request = kept()

    assert state.give_back("a", 0, 1) == [Nothing(request)]
    assert state.take_now() == b"1"


def test_with_several_readers_or_large_items_nothing_is_kept():
    state = QueueState()
    state.add_reader("b")
    state.request(Request("a", max_items=10))
    assert [one.kept for one in only(state.offer(offer(b"1")), Deliver)] == [False]

    state = QueueState()
    state.request(Request("a", max_items=10))
    assert [one.kept for one in only(state.offer(offer(bytes(2**20))), Deliver)] == [False]


def test_a_kept_request_recalls_nothing_and_gets_the_end():
    state, request = kept()
    state.add_reader("b")

    assert state.close_writers() == [End(request)]


# -- readers that poll a descriptor: an only one is sent items, several are notified


def standing(reader):
    return Request(reader, mode=Mode.STANDING)


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
