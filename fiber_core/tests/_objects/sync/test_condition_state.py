"""A condition's sleepers: woken in order, and no notification lost with a process."""

from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync.condition import Sleepers
from fiber._objects.sync.wait_queue import Request, Verdict


def told(answers):
    assert all(one.verdict is Verdict.YES for one in answers)
    return [(one.request.party, one.request.number) for one in answers]


def asleep(*parties):
    sleepers = Sleepers()
    for number, party in enumerate(parties):
        assert sleepers.sleep(Request(party, number)) == []
    return sleepers


def test_those_who_slept_for_longest_are_woken():
    sleepers = asleep("a", "b", None)

    assert told(sleepers.notify(2)) == [("a", 0), ("b", 1)]
    assert told(sleepers.notify(5)) == [(None, 2)]
    assert sleepers.notify(1) == []
    assert len(sleepers) == 0


def test_a_notification_that_nobody_waits_for_is_not_kept():
    sleepers = asleep()
    assert sleepers.notify(1) == []

    assert sleepers.sleep(Request("a")) == []


def test_negative_counts_wake_nobody():
    assert asleep("a").notify(-1) == []


def test_one_who_cancels_sleeps_no_more():
    sleepers = asleep("a", "b")
    (answer,) = sleepers.cancel("a", 0)

    assert answer.verdict is Verdict.NO
    assert sleepers.cancel("a", 0) == []
    assert told(sleepers.notify(1)) == [("b", 1)]


def test_what_a_dead_process_has_not_heard_wakes_another():
    sleepers = asleep("a", "a", "b", "c")
    sleepers.notify(2)
    sleepers.woke("a")

    assert told(sleepers.lose("a", "a")) == [("b", 2)]
    assert len(sleepers) == 1


def test_what_it_has_heard_is_its_own():
    sleepers = asleep("a", "b")
    sleepers.notify(1)
    sleepers.woke("a")

    assert sleepers.lose("a", "a") == []


def test_the_dead_are_not_woken():
    sleepers = asleep("a", "b")
    assert sleepers.lose("a", "a") == []

    assert told(sleepers.notify(1)) == [("b", 1)]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sleep", "notify", "cancel", "woke", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 4),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_each_is_told_once_and_in_order(events):
    sleepers = Sleepers()
    waiting: list[tuple[object, int]] = []

    def heard(answers):
        for key in told(answers):
            assert key == waiting.pop(0)

    for number, (event, party, pick) in enumerate(events):
        if event == "sleep":
            sleepers.sleep(Request(party, number))
            waiting.append((party, number))
        elif event == "notify":
            before = len(waiting)
            answers = sleepers.notify(pick)
            assert len(answers) == min(pick, before)
            heard(answers)
        elif event == "cancel" and waiting:
            key = waiting.pop(pick % len(waiting))
            assert len(sleepers.cancel(*key)) == 1
        elif event == "woke" and party is not None:
            sleepers.woke(party)
        elif event == "lose" and party is not None:
            waiting[:] = [key for key in waiting if key[0] != party]
            heard(sleepers.lose(party, ""))
        assert len(sleepers) == len(waiting)
