"""The state of barriers: they open when all parties wait, and break for all that do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync.barrier import BarrierState
from fiber._objects.sync.wait_queue import Request, Status


def outcomes(answers):
    return [(one.request.process, one.status, one.value) for one in answers]


def arrive(barrier, process, number=0, *, has_action=False):
    return outcomes(barrier.arrive(Request(process, number), has_action=has_action))


def broken(*parties):
    return [(process, Status.BROKEN, 0) for process in parties]


def opened(*parties):
    return [(process, Status.OK, place) for place, process in enumerate(parties)]


def test_it_opens_for_all_when_the_last_one_comes():
    barrier = BarrierState(3)
    assert arrive(barrier, "a") == []
    assert arrive(barrier, "b") == []
    assert barrier.waiting == 2

    assert arrive(barrier, "c") == opened("a", "b", "c")
    assert barrier.waiting == 0
    assert arrive(barrier, "a") == [], "it is closed again"


def test_for_one_party_it_is_always_open():
    assert arrive(BarrierState(1), "a") == opened("a")


def test_the_last_one_runs_its_action_before_any_may_go():
    barrier = BarrierState(2)
    arrive(barrier, "a", has_action=True)
    assert arrive(barrier, "b", has_action=True) == [("b", Status.RUN_ACTION, 1)]
    status, answers = barrier.action_ended("b", 1, succeeded=True)

    assert status is Status.OK
    assert outcomes(answers) == opened("a")


def test_it_breaks_where_the_action_fails():
    barrier = BarrierState(2)
    arrive(barrier, "a")
    arrive(barrier, "b", has_action=True)
    status, answers = barrier.action_ended("b", 1, succeeded=False)

    assert (status, outcomes(answers)) == (Status.BROKEN, broken("a"))
    assert barrier.is_broken


@pytest.mark.parametrize("end", ["abort", "reset"])
def test_an_action_that_ends_after_the_barrier_was_broken_opens_nothing(end):
    barrier = BarrierState(2)
    arrive(barrier, "a")
    arrive(barrier, "b", has_action=True)
    assert outcomes(getattr(barrier, end)()) == broken("a")

    assert barrier.action_ended("b", 1, succeeded=True) == (Status.BROKEN, [])
    assert barrier.is_broken == (end == "abort")
    assert barrier.action_ended("b", 0, succeeded=True) == (Status.BROKEN, [])


def test_those_who_come_during_the_action_are_let_in_afterwards():
    barrier = BarrierState(2)
    arrive(barrier, "a")
    arrive(barrier, "b", has_action=True)
    assert arrive(barrier, "c") == []
    assert arrive(barrier, "d") == []

    _, answers = barrier.action_ended("b", 1, succeeded=True)
    assert outcomes(answers) == opened("a") + opened("c", "d")


def test_it_breaks_when_the_time_of_one_is_up():
    barrier = BarrierState(3)
    arrive(barrier, "a", 1)
    arrive(barrier, "b", 1)

    assert outcomes(barrier.cancel("b", 1, expired=True)) == broken("b", "a")
    assert arrive(barrier, "c") == broken("c")
    barrier.reset()
    assert arrive(barrier, "c") == []


def test_while_the_action_is_run_no_time_is_up():
    barrier = BarrierState(2)
    arrive(barrier, "a", 1)
    arrive(barrier, "b", 1, has_action=True)
    assert barrier.cancel("a", 1, expired=True) == []

    assert outcomes(barrier.action_ended("b", 1, succeeded=True)[1]) == opened("a")


def test_one_that_comes_during_the_action_and_waits_too_long_breaks_the_next_round():
    barrier = BarrierState(2)
    arrive(barrier, "a")
    arrive(barrier, "b", has_action=True)
    arrive(barrier, "c", 1)
    assert outcomes(barrier.cancel("c", 1, expired=True)) == broken("c")

    assert outcomes(barrier.action_ended("b", 1, succeeded=True)[1]) == opened("a")
    assert barrier.is_broken


def test_one_who_is_interrupted_leaves_and_breaks_nothing():
    barrier = BarrierState(2)
    arrive(barrier, "a", 1)
    assert outcomes(barrier.cancel("a", 1)) == broken("a")
    assert barrier.cancel("a", 1) == []
    assert not barrier.is_broken
    assert arrive(barrier, "b") == []

    assert arrive(barrier, "c") == opened("b", "c")


def test_a_reset_tells_those_who_wait_and_begins_anew():
    barrier = BarrierState(3)
    arrive(barrier, "a")

    assert outcomes(barrier.reset()) == broken("a")
    assert not barrier.is_broken
    assert barrier.waiting == 0


def test_it_breaks_when_a_process_dies_that_waits_or_may_be_waited_for():
    for dead in "ac":
        barrier = BarrierState(3)
        arrive(barrier, "a")
        arrive(barrier, "b")
        alive = [process for process in "ab" if process != dead]
        assert outcomes(barrier.process_died(dead, "")) == broken(*alive)
        assert barrier.is_broken


def test_it_breaks_when_the_one_who_runs_the_action_dies():
    barrier = BarrierState(2)
    arrive(barrier, "a")
    arrive(barrier, "b", has_action=True)
    arrive(barrier, "c")

    assert outcomes(barrier.process_died("b", "")) == broken("a", "c")


def test_a_normal_end_breaks_nothing_but_what_it_was_doing():
    barrier = BarrierState(3)
    arrive(barrier, "a")
    arrive(barrier, "b")
    assert barrier.process_exited("a", 0) == []
    assert barrier.process_died("a", "") == [], "that its connection ends is no news"
    assert barrier.waiting == 1

    acting = BarrierState(2)
    arrive(acting, "a")
    arrive(acting, "b", has_action=True)
    assert outcomes(acting.process_exited("b", 0)) == broken("a")


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
def test_whatever_happens_each_request_is_answered_once_and_never_in_vain(events, parties):
    barrier = BarrierState(parties)
    waiting: set[tuple[object, int]] = set()
    running = None

    def heard(answers):
        nonlocal running
        for one in answers:
            waiting.remove((one.request.process, one.request.number))
            if one.status is Status.RUN_ACTION:
                assert running is None
                running = (one.request.process, one.value)

    for number, (event, process, pick) in enumerate(events):
        keys = sorted(waiting, key=repr)
        if event in ("arrive", "acts"):
            waiting.add((process, number))
            heard(barrier.arrive(Request(process, number), has_action=event == "acts"))
        elif event in ("ran", "fail") and running is not None:
            runner, running = running, None
            heard(barrier.action_ended(*runner, succeeded=event == "ran")[1])
        elif event in ("expire", "cancel") and keys:
            heard(barrier.cancel(*keys[pick % len(keys)], expired=event == "expire"))
        elif event in ("reset", "abort"):
            running = None
            heard(getattr(barrier, event)())
        elif event == "lose":
            running = None
            waiting = {key for key in waiting if key[0] != process}
            heard(barrier.process_died(process, ""))

        assert barrier.waiting < parties
        if running is None:
            assert len(waiting) == barrier.waiting
        assert not (barrier.is_broken and waiting and running is None)
