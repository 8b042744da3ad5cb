"""Permits: handed out in order, given back, inherited from the dead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync.permits import Permits
from fiber._objects.sync.wait_queue import Request, Verdict
from fiber.exceptions import WireError


def told(answers):
    return [(one.request.party, one.request.number, one.verdict) for one in answers]


def ask(permits, party, number=1, *, wait=True):
    return told(permits.ask(Request(party, number), wait=wait))


def test_a_permit_is_taken_at_once_where_there_is_one():
    permits = Permits(1, 1)

    assert ask(permits, "a") == [("a", 1, Verdict.YES)]
    assert ask(permits, "b", wait=False) == [("b", 1, Verdict.NO)]
    assert (permits.value, permits.held_by("a")) == (0, 1)


def test_those_who_wait_get_it_in_the_order_in_which_they_came():
    permits = Permits(1, 1)
    ask(permits, "a")
    for name in "bcd":
        assert ask(permits, name) == []

    assert told(permits.release("a")) == [("b", 1, Verdict.YES)]
    assert not permits.take_now("a"), "nobody overtakes"
    assert told(permits.release("b")) == [("c", 1, Verdict.YES)]


def test_one_who_cancelled_is_passed_over():
    permits = Permits(0, 1)
    ask(permits, "a", 7)
    ask(permits, "b", 8)

    assert told(permits.cancel("a", 7)) == [("a", 7, Verdict.NO)]
    assert permits.cancel("a", 7) == []
    assert told(permits.give(Request("c"))[1]) == [("c", 0, Verdict.YES), ("b", 8, Verdict.YES)]


def test_a_number_is_good_for_one_request_at_a_time():
    permits = Permits(0, 1)
    ask(permits, "a", 7)

    with pytest.raises(WireError, match="number 7"):
        ask(permits, "a", 7)


def test_there_are_never_more_than_the_maximum():
    permits = Permits(1, 1)

    assert told(permits.give(Request("a"))[1]) == [("a", 0, Verdict.TOO_MANY)]
    assert permits.value == 1


def test_a_permit_that_another_gives_back_is_taken_off_its_oldest_taker():
    permits = Permits(3, 3)
    for name in ("a", "b", "a"):
        ask(permits, name)

    losers, _ = permits.give(Request("c"))
    assert losers == ["b"], "it took one before the other one's last"
    assert permits.holds == {"a": 2}
    losers, _ = permits.give(Request("a"))
    assert losers == []
    assert permits.holds == {"a": 1}


def test_where_nothing_is_traced_what_is_given_is_more():
    permits = Permits(1, 9, trace=False)
    ask(permits, "a")

    assert permits.give(Request("b"))[0] == []
    assert (permits.holds, permits.value) == ({"a": 1}, 1)


def test_what_is_given_back_twice_counts_once():
    permits = Permits(2, 2)
    ask(permits, "a")
    permits.give(Request("b"))

    assert permits.release("a") == []
    assert permits.value == 2


def test_a_permit_is_given_that_nobody_took():
    permits = Permits(0, 5)

    assert permits.give(Request("a"))[0] == []
    assert permits.value == 1


# -- processes that end


def test_the_next_one_inherits_from_the_dead_and_is_told():
    permits = Permits(1, 1)
    ask(permits, "a")
    ask(permits, "b")
    ask(permits, "c")

    (answer,) = permits.lose("a", "process 1")
    assert (answer.request.party, answer.verdict, answer.text) == (
        "b",
        Verdict.INHERITED,
        "process 1",
    )
    assert told(permits.release("b")) == [("c", 1, Verdict.YES)], "it is told once"


def test_it_is_told_to_whoever_comes_next():
    permits = Permits(1, 1)
    ask(permits, "a")
    assert permits.lose("a", "process 1") == []

    assert not permits.take_now("b")
    assert ask(permits, "b", wait=False) == [("b", 1, Verdict.INHERITED)]


def test_one_who_is_interrupted_leaves_the_news_to_the_next():
    permits = Permits(1, 1)
    ask(permits, "a")
    ask(permits, "b")
    ask(permits, "c")
    permits.lose("a", "process 1")

    (answer,) = permits.untake("b", inherited=True)
    assert (answer.request.party, answer.verdict, answer.text) == (
        "c",
        Verdict.INHERITED,
        "process 1",
    )


def test_where_it_is_refused_one_gets_the_news_and_the_next_one_the_permit():
    permits = Permits(1, 1, refuse=True)
    for name in "abc":
        ask(permits, name)

    assert told(permits.lose("a", "process 1")) == [
        ("b", 1, Verdict.DIED),
        ("c", 1, Verdict.YES),
    ]


def test_the_dead_wait_no_more():
    permits = Permits(0, 1)
    ask(permits, "a")
    ask(permits, "b")
    permits.lose("a", "process 1")

    assert told(permits.give(Request("c"))[1])[1:] == [("b", 1, Verdict.YES)]


def test_after_a_normal_end_it_stays_taken():
    permits = Permits(1, 1)
    ask(permits, "a")
    ask(permits, "b")

    assert permits.leave("a", 1) == []
    assert permits.lose("a", "process 1") == [], "that the connection ends is no news"
    assert permits.value == 0


def test_what_came_too_late_for_a_normal_end_goes_to_the_next():
    permits = Permits(2, 2)
    ask(permits, "a")
    ask(permits, "a", 2)
    ask(permits, "b")

    assert told(permits.leave("a", 1)) == [("b", 1, Verdict.YES)]


def test_permits_that_are_not_to_be_recovered_are_gone_with_their_taker():
    permits = Permits(2, 2, recover=False, tell=False)
    ask(permits, "a")

    assert permits.lose("a", "process 1") == []
    assert permits.value == 1


def test_recovered_ones_come_back_without_a_word():
    permits = Permits(2, 2, tell=False)
    ask(permits, "a")
    ask(permits, "a", 2)
    ask(permits, "b")
    ask(permits, "c")

    assert told(permits.lose("a", "process 1")) == [
        ("b", 1, Verdict.YES),
        ("c", 1, Verdict.YES),
    ]


# -- any order

PARTIES = ["a", "b", None]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "try", "cancel", "release", "give", "leave", "lose"]),
        st.sampled_from(PARTIES),
        st.integers(0, 8),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(0, 3), st.booleans(), st.booleans())
def test_whatever_happens_permits_are_conserved_and_nobody_waits_beside_one(
    events, value, recover, refuse
):
    permits = Permits(value, 3, recover=recover, refuse=refuse)
    waiting = []
    total = value

    def heard(answers):
        for one in answers:
            key = (one.request.party, one.request.number)
            if key in waiting:
                if one.verdict is Verdict.YES:
                    assert key == waiting[0], "first come, first served"
                waiting.remove(key)

    for number, (event, party, pick) in enumerate(events):
        held = permits.held_by(party)
        if event in ("ask", "try"):
            request = Request(party, number)
            answers = permits.ask(request, wait=event == "ask")
            if not answers:
                waiting.append((party, number))
            heard(answers)
        elif event == "cancel" and waiting:
            key = waiting[pick % len(waiting)]
            (answer,) = permits.cancel(*key)
            assert answer.verdict is Verdict.NO
            waiting.remove(key)
        elif event == "release":
            heard(permits.release(party))
        elif event == "give":
            free_before = permits.value
            taken_before = sum(permits.holds.values())
            _, answers = permits.give(Request(party, -1))
            assert (answers[0].verdict is Verdict.TOO_MANY) == (free_before == 3)
            if answers[0].verdict is Verdict.YES and not taken_before:
                total += 1
            heard(answers[1:])
        elif event in ("leave", "lose"):
            waiting[:] = [key for key in waiting if key[0] != party]
            if event == "leave":
                heard(permits.leave(party, pick))
                total -= min(held, pick)
            else:
                heard(permits.lose(party, "somebody"))
                total -= 0 if recover else held

        assert permits.value + sum(permits.holds.values()) == total
        assert not (permits.value and waiting)
        assert permits.waiting == len(waiting)
