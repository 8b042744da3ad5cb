"""What a lane has recalled, how it ends, and which requests it keeps."""

from collections import deque

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    Broken,
    Drop,
    End,
    Give,
    Nothing,
    Offer,
    Ready,
    Recall,
    Request,
    Watch,
)
from fiber._objects.queue.state import Lane


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


# -- recall


def test_a_reader_that_waits_has_parked_items_recalled_after_a_moment():
    lane = filled(b"1", b"2", b"3", b"4")
    lane.ask(Request("a", want=4))
    waiting = Request("b")
    assert lane.ask(waiting) == [Watch()]

    assert lane.overdue() == [Recall("a")]
    out = lane.give_back("a", 1, 4)
    assert [(one.request, one.items) for one in only(out, Give)] == [(waiting, [b"2"])]


def test_a_thread_of_the_owner_has_them_recalled_as_well():
    lane = filled(b"1")
    lane.ask(Request("a"))
    assert lane.ask(Request(None)) == [Watch()]
    assert lane.overdue() == [Recall("a")]


def test_nobody_is_asked_twice_before_it_has_answered():
    lane = filled(b"1", b"2")
    lane.ask(Request("a", want=2))
    lane.ask(Request("b"))
    lane.overdue()

    assert Recall("a") not in lane.ask(Request("c"))
    assert only(lane.overdue(), Recall) == []


def test_nothing_is_recalled_where_items_were_handed_out_in_the_meantime():
    lane = filled(b"1")
    handed_out = [0, 0, 0]
    lane.open("a", lambda: tuple(handed_out))
    lane.ask(Request("a"))
    lane.ask(Request("b"))
    handed_out[0] = 1

    assert lane.overdue() == []


def test_a_request_that_only_rings_a_bell_recalls_what_others_keep():
    lane = filled(b"1")
    lane.ask(Request("a"))
    watching = Request("b", mode=Mode.STANDING)
    assert lane.ask(watching) == [Watch()]

    assert lane.overdue() == [Recall("a")]
    assert lane.give_back("a", 0, 1) == [Ready(watching)]


def test_one_that_does_not_wait_gets_what_others_have_parked():
    lane = filled(b"1")
    lane.ask(Request("a"))
    request = Request("b", mode=Mode.NOWAIT)
    assert lane.ask(request) == [Recall("a"), Watch()]

    assert given(lane.give_back("a", 0, 1)) == [b"1"]


def test_one_that_does_not_wait_is_not_held_up_by_a_reader_that_does_not_answer():
    lane = filled(b"1")
    lane.ask(Request("a"))
    request = Request("b", mode=Mode.NOWAIT, patience=2)
    lane.ask(request)
    assert lane.overdue() == [Watch()]

    assert lane.overdue() == [Nothing(request)]


# -- the end


def test_readers_hear_of_the_end_after_the_last_item():
    lane = filled(b"1")
    lane.close_writers()
    first = lane.ask(Request("a"))
    assert given(first) == [b"1"]

    request = Request("a")
    assert lane.ask(request, 1) == [End(request)]
    assert lane.has_ended


def test_those_who_wait_hear_of_the_end_at_once():
    lane = Lane()
    requests = [Request("a"), Request(None), Request("b", mode=Mode.STANDING)]
    for request in requests:
        lane.ask(request)

    assert lane.close_writers() == [End(request) for request in requests]


def test_it_is_not_the_end_while_another_reader_may_give_something_back():
    lane = filled(b"1")
    lane.ask(Request("a"))
    lane.close_writers()
    waiting = Request("b")
    assert lane.ask(waiting) == [Watch()]

    assert lane.overdue() == [Recall("a")]
    assert lane.give_back("a", 1, 1) == [End(waiting)]


def test_it_is_not_the_end_while_a_writer_waits_for_room():
    lane = filled(b"1", maxsize=1)
    lane.offer(offer(b"2"))
    lane.close_writers()

    assert not lane.has_ended
    assert lane.take_now() == b"1"
    lane.advance()
    assert lane.take_now() == b"2"
    assert lane.has_ended


def test_without_readers_everything_is_dropped_and_writers_are_told():
    lane = filled(b"1", maxsize=1)
    waiting = offer(b"2")
    lane.offer(waiting)

    assert lane.close_readers() == [Broken(waiting), Drop([b"2", b"1"])]
    late = offer(b"3")
    assert lane.offer(late) == [Broken(late), Drop([b"3"])]
    assert not lane.put_now(b"4")


def test_what_the_last_reader_gives_back_is_dropped_as_well():
    lane = filled(b"1")
    lane.ask(Request("a"))
    lane.close_readers()

    assert lane.lose("a") == [Drop([b"1"])]


def test_it_is_settled_once_all_was_handed_out():
    lane = filled(b"1")
    lane.ask(Request("a"))
    assert not lane.is_settled

    lane.settle("a", 1)
    assert lane.is_settled


# -- requests that are kept


def kept(*, want=10):
    """A lane whose only reader has got one item and is good for more."""
    lane = Lane()
    request = Request("a", want=want)
    lane.ask(request)
    (_, give) = lane.offer(offer(b"1"))
    assert give == Give(request, 1, [b"1"], kept=True)
    return lane, request


def test_the_only_reader_gets_what_comes_next_without_asking_again():
    lane, request = kept()

    assert Give(request, 2, [b"2"], kept=True) in lane.offer(offer(b"2"))


def test_it_gets_no_more_than_it_asked_for():
    lane, request = kept(want=2)
    assert Give(request, 2, [b"2"], kept=False) in lane.offer(offer(b"2"))

    assert only(lane.offer(offer(b"3")), Give) == []


def test_another_reader_that_waits_ends_it():
    lane, request = kept()
    other = Request("b")

    assert Nothing(request) in lane.ask(other)
    assert [one.request for one in only(lane.offer(offer(b"2")), Give)] == [other]


def test_a_reader_that_gives_back_does_not_get_it_again_at_once():
    lane, request = kept()

    assert lane.give_back("a", 0, 1) == [Nothing(request)]
    assert lane.take_now() == b"1"


def test_with_several_readers_or_large_items_nothing_is_kept():
    lane = Lane()
    lane.open("b")
    lane.ask(Request("a", want=10))
    assert [one.kept for one in only(lane.offer(offer(b"1")), Give)] == [False]

    lane = Lane()
    lane.ask(Request("a", want=10))
    assert [one.kept for one in only(lane.offer(offer(bytes(2**20))), Give)] == [False]


def test_a_kept_request_recalls_nothing_and_hears_of_the_end():
    lane, request = kept()
    lane.open("b")

    assert lane.close_writers() == [End(request)]
