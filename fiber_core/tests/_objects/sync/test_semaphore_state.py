"""The state of locks and semaphores, requests that wait in order, and permits of one process's threads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.sync import protocol
from fiber._objects.sync.semaphore import LocalHold, SemaphoreState
from fiber._objects.sync.wait_queue import Request, Status, WaitQueue
from fiber.exceptions import HolderDiedError, HolderDiedWarning, WireError
from objects_world import in_thread


def outcomes(answers):
    return [(one.request.process, one.request.number, one.status) for one in answers]


def acquire(semaphore, process, number=1, *, wait=True):
    return outcomes(semaphore.acquire(Request(process, number), wait=wait))


def acquired(processes, value=1, maximum=1, **options):
    """A semaphore that processes have asked for, in this order."""
    semaphore = SemaphoreState(value, maximum, **options)
    for process in processes:
        acquire(semaphore, process)
    return semaphore


def test_a_permit_is_taken_at_once_where_there_is_one():
    semaphore = SemaphoreState(1, 1)

    assert acquire(semaphore, "a") == [("a", 1, Status.OK)]
    assert acquire(semaphore, "b", wait=False) == [("b", 1, Status.REFUSED)]
    assert (semaphore.value, semaphore.held_by("a")) == (0, 1)


def test_requests_are_granted_in_order():
    semaphore = acquired("a")
    for name in "bcd":
        assert acquire(semaphore, name) == []

    assert outcomes(semaphore.release("a")) == [("b", 1, Status.OK)]
    assert not semaphore.try_acquire("a"), "nobody overtakes"
    assert outcomes(semaphore.release("b")) == [("c", 1, Status.OK)]


def test_a_cancelled_request_is_passed_over():
    semaphore = SemaphoreState(0, 1)
    acquire(semaphore, "a", 7)
    acquire(semaphore, "b", 8)

    assert outcomes(semaphore.cancel("a", 7)) == [("a", 7, Status.REFUSED)]
    assert semaphore.cancel("a", 7) == []
    assert outcomes(semaphore.release_for_other(Request("c"))[1]) == [
        ("c", 0, Status.OK),
        ("b", 8, Status.OK),
    ]


def test_a_number_is_good_for_one_request_at_a_time():
    semaphore = SemaphoreState(0, 1)
    acquire(semaphore, "a", 7)

    with pytest.raises(WireError, match="number 7"):
        acquire(semaphore, "a", 7)


def test_there_are_never_more_than_the_maximum():
    semaphore = SemaphoreState(1, 1)

    assert outcomes(semaphore.release_for_other(Request("a"))[1]) == [("a", 0, Status.TOO_MANY)]
    assert semaphore.value == 1


def test_a_permit_that_another_gives_back_is_taken_off_its_oldest_taker():
    semaphore = acquired("aba", 3, 3)

    former_holders, _ = semaphore.release_for_other(Request("c"))
    assert former_holders == ["b"], "it took one before the other one's last"
    assert semaphore.holds == {"a": 2}
    former_holders, _ = semaphore.release_for_other(Request("a"))
    assert former_holders == []
    assert semaphore.holds == {"a": 1}


def test_where_nothing_is_traced_what_is_given_is_more():
    semaphore = acquired("a", 1, 9, track_holders=False)

    assert semaphore.release_for_other(Request("b"))[0] == []
    assert (semaphore.holds, semaphore.value) == ({"a": 1}, 1)


def test_what_is_given_back_twice_counts_once():
    semaphore = acquired("a", 2, 2)
    semaphore.release_for_other(Request("b"))

    assert semaphore.release("a") == []
    assert semaphore.value == 2


def test_a_permit_that_no_process_acquired_can_be_released():
    semaphore = SemaphoreState(0, 5)

    assert semaphore.release_for_other(Request("a"))[0] == []
    assert semaphore.value == 1


# -- processes that end


def test_the_next_acquirer_gets_the_permit_and_a_report_of_the_death():
    semaphore = acquired("abc")

    (answer,) = semaphore.process_died("a", "process 1")
    assert (answer.request.process, answer.status, answer.text) == (
        "b",
        Status.OK_HOLDER_DIED,
        "process 1",
    )
    assert outcomes(semaphore.release("b")) == [("c", 1, Status.OK)], "it is told once"


def test_the_death_is_reported_to_the_next_acquirer():
    semaphore = acquired("a")
    assert semaphore.process_died("a", "process 1") == []

    assert not semaphore.try_acquire("b")
    assert acquire(semaphore, "b", wait=False) == [("b", 1, Status.OK_HOLDER_DIED)]


def test_an_interrupted_acquirer_leaves_the_report_to_the_next():
    semaphore = acquired("abc")
    semaphore.process_died("a", "process 1")

    (answer,) = semaphore.cancel_grant("b", inherited=True)
    assert (answer.request.process, answer.status, answer.text) == (
        "c",
        Status.OK_HOLDER_DIED,
        "process 1",
    )


def test_where_it_is_refused_one_gets_the_news_and_the_next_one_the_permit():
    semaphore = acquired("abc", refuse_after_death=True)

    assert outcomes(semaphore.process_died("a", "process 1")) == [
        ("b", 1, Status.REFUSED_HOLDER_DIED),
        ("c", 1, Status.OK),
    ]


def test_the_dead_wait_no_more():
    semaphore = acquired("ab", 0, 1)
    semaphore.process_died("a", "process 1")

    assert outcomes(semaphore.release_for_other(Request("c"))[1])[1:] == [("b", 1, Status.OK)]


def test_after_a_normal_end_it_stays_taken():
    semaphore = acquired("ab")

    assert semaphore.process_exited("a", 1) == []
    assert semaphore.process_died("a", "process 1") == [], "that the connection ends is no news"
    assert semaphore.value == 0


def test_what_came_too_late_for_a_normal_end_goes_to_the_next():
    semaphore = acquired("a", 2, 2)
    acquire(semaphore, "a", 2)
    acquire(semaphore, "b")

    assert outcomes(semaphore.process_exited("a", 1)) == [("b", 1, Status.OK)]


def test_permits_that_are_not_to_be_recovered_are_gone_with_their_taker():
    semaphore = acquired("a", 2, 2, recover=False, report_deaths=False)

    assert semaphore.process_died("a", "process 1") == []
    assert semaphore.value == 1


def test_recovered_ones_come_back_without_a_word():
    semaphore = acquired("a", 2, 2, report_deaths=False)
    acquire(semaphore, "a", 2)
    acquire(semaphore, "b")
    acquire(semaphore, "c")

    assert outcomes(semaphore.process_died("a", "process 1")) == [
        ("b", 1, Status.OK),
        ("c", 1, Status.OK),
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
    events, value, recover, refuse_after_death
):
    semaphore = SemaphoreState(value, 3, recover=recover, refuse_after_death=refuse_after_death)
    waiting = []
    total = value

    def heard(answers):
        for one in answers:
            key = (one.request.process, one.request.number)
            if key in waiting:
                if one.status is Status.OK:
                    assert key == waiting[0], "first come, first served"
                waiting.remove(key)

    for number, (event, process, pick) in enumerate(events):
        held = semaphore.held_by(process)
        if event in ("ask", "try"):
            request = Request(process, number)
            answers = semaphore.acquire(request, wait=event == "ask")
            if not answers:
                waiting.append((process, number))
            heard(answers)
        elif event == "cancel" and waiting:
            key = waiting[pick % len(waiting)]
            (answer,) = semaphore.cancel(*key)
            assert answer.status is Status.REFUSED
            waiting.remove(key)
        elif event == "release":
            heard(semaphore.release(process))
        elif event == "give":
            free_before = semaphore.value
            taken_before = sum(semaphore.holds.values())
            _, answers = semaphore.release_for_other(Request(process, -1))
            assert (answers[0].status is Status.TOO_MANY) == (free_before == 3)
            if answers[0].status is Status.OK and not taken_before:
                total += 1
            heard(answers[1:])
        elif event in ("leave", "lose"):
            waiting[:] = [key for key in waiting if key[0] != process]
            if event == "leave":
                heard(semaphore.process_exited(process, pick))
                total -= min(held, pick)
            else:
                heard(semaphore.process_died(process, "somebody"))
                total -= 0 if recover else held

        assert semaphore.value + sum(semaphore.holds.values()) == total
        assert not (semaphore.value and waiting)
        assert semaphore.waiting == len(waiting)


# -- requests that wait


def test_the_first_to_come_is_the_first_to_go():
    line, requests = WaitQueue(), [Request("a", 1), Request("b", 1), Request("a", 2)]
    for request in requests:
        line.add(request)

    assert [line.first() for _ in requests] == requests
    assert len(line) == 0


def test_one_is_found_by_party_and_number():
    line, request = WaitQueue(), Request("a", 1)
    line.add(request)
    with pytest.raises(WireError, match="number 1 for two requests"):
        line.add(Request("a", 1))

    assert line.remove("b", 1) is None
    assert line.remove("a", 1) is request
    assert line.remove("a", 1) is None


def test_those_of_a_party_or_all_are_taken_out():
    line = WaitQueue()
    for request in (Request("a", 1), Request("b", 1), Request("a", 2), Request(None, 3)):
        line.add(request)

    assert line.has_others(None)
    assert [request.number for request in line.remove_all("a")] == [1, 2]
    assert [request.process for request in line.clear()] == ["b", None]
    assert not line.has_others(None)


# -- permits that threads of one process hold


def test_it_is_the_threads_that_took_it_last():
    local = LocalHold("lock", recursive=False)
    assert not local.is_held_by_thread
    local.held = 1
    in_thread(local.set_thread)()
    assert (local.is_held_by_thread, local.count) == (False, 1)
    local.set_thread()
    assert (local.is_held_by_thread, local.count) == (True, 1)
    local.held = 0

    assert not local.is_held_by_thread


def test_a_recursive_one_is_left_as_often_as_it_was_taken():
    local = LocalHold("lock", recursive=True)
    assert not local.try_reenter()
    local.held = 1
    local.set_thread()
    assert local.try_reenter()
    assert not local.count_release()
    with pytest.raises(AssertionError, match="not owned by thread"):
        in_thread(local.count_release)()

    assert local.count_release()


@pytest.mark.parametrize("recursive", [True, False])
def test_what_another_thread_was_given_is_not_taken_for_what_this_one_had(recursive):
    local = LocalHold("lock", recursive=recursive)
    local.held = 1
    local.set_thread()
    assert local.count_release()
    # another thread waited, and has not run yet
    local.held = 1

    assert not local.is_held_by_thread
    assert not local.try_reenter()


def test_another_kind_is_not_taken_again():
    local = LocalHold("lock", recursive=False)
    local.held = 1
    local.set_thread()

    assert not local.try_reenter()


def test_it_is_left_altogether():
    local = LocalHold("lock", recursive=True)
    local.held = 1
    local.set_thread()
    local.try_reenter()
    depth = local.save_depth()

    assert depth == 2
    assert local.count_release()


def test_the_users_line_is_named():
    local = LocalHold("lock", recursive=False)
    with pytest.warns(HolderDiedWarning, match="process 7 died while it held this lock") as caught:
        local.warn(Status.OK_HOLDER_DIED, "process 7")
    assert caught[0].filename == __file__
    with pytest.raises(HolderDiedError, match="process 7 died"):
        local.warn(Status.REFUSED_HOLDER_DIED, "process 7")


# -- messages


def test_an_answer_is_read_as_it_was_written():
    for parts in (
        (7, Status.OK, -3, ""),
        (2**64 - 1, Status.REFUSED_HOLDER_DIED, 0, "process 1 on höst"),
    ):
        assert protocol.parse_answer(protocol.answer(*parts)) == parts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        protocol.answer(1, Status.OK, 0, "")[:-1],
        protocol.ANSWER.pack(64, 1, 200, 0),
        protocol.ANSWER.pack(64, 1, 0, 0) + b"\xff",
    ],
)
def test_nonsense_is_refused(body):
    with pytest.raises(WireError):
        protocol.parse_answer(body)
