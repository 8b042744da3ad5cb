"""A barrier: opens when enough are there, and breaks for all who are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync.barrier import Gathering
from fiber._objects.sync.wait_queue import Request, Verdict


def told(answers):
    return [(one.request.party, one.verdict, one.value) for one in answers]


def arrive(gathering, party, number=0, *, acts=False):
    return told(gathering.arrive(Request(party, number), acts=acts))


def broken(*parties):
    return [(party, Verdict.BROKEN, 0) for party in parties]


def opened(*parties):
    return [(party, Verdict.YES, place) for place, party in enumerate(parties)]


def test_it_opens_for_all_when_the_last_one_comes():
    gathering = Gathering(3)
    assert arrive(gathering, "a") == []
    assert arrive(gathering, "b") == []
    assert gathering.waiting == 2

    assert arrive(gathering, "c") == opened("a", "b", "c")
    assert gathering.waiting == 0
    assert arrive(gathering, "a") == [], "it is closed again"


def test_for_one_party_it_is_always_open():
    assert arrive(Gathering(1), "a") == opened("a")


def test_the_last_one_runs_its_action_before_any_may_go():
    gathering = Gathering(2)
    arrive(gathering, "a", acts=True)
    assert arrive(gathering, "b", acts=True) == [("b", Verdict.RUN, 1)]
    verdict, answers = gathering.ran("b", 1, well=True)

    assert verdict is Verdict.YES
    assert told(answers) == opened("a")


def test_it_breaks_where_the_action_fails():
    gathering = Gathering(2)
    arrive(gathering, "a")
    arrive(gathering, "b", acts=True)
    verdict, answers = gathering.ran("b", 1, well=False)

    assert (verdict, told(answers)) == (Verdict.BROKEN, broken("a"))
    assert gathering.is_broken


@pytest.mark.parametrize("end", ["abort", "reset"])
def test_an_action_that_ends_after_the_barrier_was_broken_opens_nothing(end):
    gathering = Gathering(2)
    arrive(gathering, "a")
    arrive(gathering, "b", acts=True)
    assert told(getattr(gathering, end)()) == broken("a")

    assert gathering.ran("b", 1, well=True) == (Verdict.BROKEN, [])
    assert gathering.is_broken == (end == "abort")
    assert gathering.ran("b", 0, well=True) == (Verdict.BROKEN, [])


def test_those_who_come_during_the_action_are_let_in_afterwards():
    gathering = Gathering(2)
    arrive(gathering, "a")
    arrive(gathering, "b", acts=True)
    assert arrive(gathering, "c") == []
    assert arrive(gathering, "d") == []

    _, answers = gathering.ran("b", 1, well=True)
    assert told(answers) == opened("a") + opened("c", "d")


def test_it_breaks_when_the_time_of_one_is_up():
    gathering = Gathering(3)
    arrive(gathering, "a", 1)
    arrive(gathering, "b", 1)

    assert told(gathering.cancel("b", 1, expired=True)) == broken("b", "a")
    assert arrive(gathering, "c") == broken("c")
    gathering.reset()
    assert arrive(gathering, "c") == []


def test_while_the_action_is_run_no_time_is_up():
    gathering = Gathering(2)
    arrive(gathering, "a", 1)
    arrive(gathering, "b", 1, acts=True)
    assert gathering.cancel("a", 1, expired=True) == []

    assert told(gathering.ran("b", 1, well=True)[1]) == opened("a")


def test_one_that_comes_during_the_action_and_waits_too_long_breaks_the_next_round():
    gathering = Gathering(2)
    arrive(gathering, "a")
    arrive(gathering, "b", acts=True)
    arrive(gathering, "c", 1)
    assert told(gathering.cancel("c", 1, expired=True)) == broken("c")

    assert told(gathering.ran("b", 1, well=True)[1]) == opened("a")
    assert gathering.is_broken


def test_one_who_is_interrupted_leaves_and_breaks_nothing():
    gathering = Gathering(2)
    arrive(gathering, "a", 1)
    assert told(gathering.cancel("a", 1)) == broken("a")
    assert gathering.cancel("a", 1) == []
    assert not gathering.is_broken
    assert arrive(gathering, "b") == []

    assert arrive(gathering, "c") == opened("b", "c")


def test_a_reset_tells_those_who_wait_and_begins_anew():
    gathering = Gathering(3)
    arrive(gathering, "a")

    assert told(gathering.reset()) == broken("a")
    assert not gathering.is_broken
    assert gathering.waiting == 0


def test_it_breaks_when_a_process_dies_that_waits_or_may_be_waited_for():
    for dead in "ac":
        gathering = Gathering(3)
        arrive(gathering, "a")
        arrive(gathering, "b")
        alive = [party for party in "ab" if party != dead]
        assert told(gathering.lose(dead, "")) == broken(*alive)
        assert gathering.is_broken


def test_it_breaks_when_the_one_who_runs_the_action_dies():
    gathering = Gathering(2)
    arrive(gathering, "a")
    arrive(gathering, "b", acts=True)
    arrive(gathering, "c")

    assert told(gathering.lose("b", "")) == broken("a", "c")


def test_a_normal_end_breaks_nothing_but_what_it_was_doing():
    gathering = Gathering(3)
    arrive(gathering, "a")
    arrive(gathering, "b")
    assert gathering.leave("a", 0) == []
    assert gathering.lose("a", "") == [], "that its connection ends is no news"
    assert gathering.waiting == 1

    acting = Gathering(2)
    arrive(acting, "a")
    arrive(acting, "b", acts=True)
    assert told(acting.leave("b", 0)) == broken("a")


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive"] * 4 + ["acts", "ran", "fail", "expire", "cancel"])
        | st.sampled_from(["reset", "abort", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 3))
def test_whatever_happens_each_is_told_once_and_never_in_vain(events, parties):
    gathering = Gathering(parties)
    waiting: set[tuple[object, int]] = set()
    running = None

    def heard(answers):
        nonlocal running
        for one in answers:
            waiting.remove((one.request.party, one.request.number))
            if one.verdict is Verdict.RUN:
                assert running is None
                running = (one.request.party, one.value)

    for number, (event, party, pick) in enumerate(events):
        keys = sorted(waiting, key=repr)
        if event in ("arrive", "acts"):
            waiting.add((party, number))
            heard(gathering.arrive(Request(party, number), acts=event == "acts"))
        elif event in ("ran", "fail") and running is not None:
            runner, running = running, None
            heard(gathering.ran(*runner, well=event == "ran")[1])
        elif event in ("expire", "cancel") and keys:
            heard(gathering.cancel(*keys[pick % len(keys)], expired=event == "expire"))
        elif event in ("reset", "abort"):
            running = None
            heard(getattr(gathering, event)())
        elif event == "lose":
            running = None
            waiting = {key for key in waiting if key[0] != party}
            heard(gathering.lose(party, ""))

        assert gathering.waiting < parties
        if running is None:
            assert len(waiting) == gathering.waiting
        assert not (gathering.is_broken and waiting and running is None)
