"""A condition's sleepers: woken in order, and no notification lost with a process."""

from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync.condition import ConditionState
from fiber._objects.sync.wait_queue import Request, Status


def outcomes(answers):
    assert all(one.status is Status.OK for one in answers)
    return [(one.request.process, one.request.number) for one in answers]


def asleep(*parties):
    condition = ConditionState()
    for number, process in enumerate(parties):
        assert condition.wait(Request(process, number)) == []
    return condition


def test_those_who_slept_for_longest_are_woken():
    condition = asleep("a", "b", None)

    assert outcomes(condition.notify(2)) == [("a", 0), ("b", 1)]
    assert outcomes(condition.notify(5)) == [(None, 2)]
    assert condition.notify(1) == []
    assert len(condition) == 0


def test_a_notification_without_a_waiting_thread_is_not_kept():
    condition = asleep()
    assert condition.notify(1) == []

    assert condition.wait(Request("a")) == []


def test_negative_counts_wake_none():
    assert asleep("a").notify(-1) == []


def test_one_who_cancels_sleeps_no_more():
    condition = asleep("a", "b")
    (answer,) = condition.cancel("a", 0)

    assert answer.status is Status.REFUSED
    assert condition.cancel("a", 0) == []
    assert outcomes(condition.notify(1)) == [("b", 1)]


def test_an_unacknowledged_notification_of_a_dead_process_wakes_another():
    condition = asleep("a", "a", "b", "c")
    condition.notify(2)
    condition.acknowledge("a")

    assert outcomes(condition.process_died("a", "a")) == [("b", 2)]
    assert len(condition) == 1


def test_an_acknowledged_notification_of_a_dead_process_wakes_none():
    condition = asleep("a", "b")
    condition.notify(1)
    condition.acknowledge("a")

    assert condition.process_died("a", "a") == []


def test_the_dead_are_not_woken():
    condition = asleep("a", "b")
    assert condition.process_died("a", "a") == []

    assert outcomes(condition.notify(1)) == [("b", 1)]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sleep", "notify", "cancel", "woke", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 4),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_each_request_is_answered_once_and_in_order(events):
    condition = ConditionState()
    waiting: list[tuple[object, int]] = []

    def heard(answers):
        for key in outcomes(answers):
            assert key == waiting.pop(0)

    for number, (event, process, pick) in enumerate(events):
        if event == "sleep":
            condition.wait(Request(process, number))
            waiting.append((process, number))
        elif event == "notify":
            before = len(waiting)
            answers = condition.notify(pick)
            assert len(answers) == min(pick, before)
            heard(answers)
        elif event == "cancel" and waiting:
            key = waiting.pop(pick % len(waiting))
            assert len(condition.cancel(*key)) == 1
        elif event == "woke" and process is not None:
            condition.acknowledge(process)
        elif event == "lose" and process is not None:
            waiting[:] = [key for key in waiting if key[0] != process]
            heard(condition.process_died(process, ""))
        assert len(condition) == len(waiting)
