"""Locks and semaphores: their state, threads of one process, several processes, their ends."""

import threading
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.address import Kind
from fiber._objects.sync import protocol, waitable
from fiber._objects.sync.protocol import Notice, Request, Status
from fiber._objects.sync.semaphore import LocalHold, OwnedSemaphore, SemaphoreState
from fiber.exceptions import HolderDiedWarning, LeaseLostError, WireError
from wire_world import in_thread, until


@pytest.fixture
def semaphore_at(owner):
    """Makes permits that live with the owner."""

    def make(kind: Kind = Kind.LOCK, value: int = 1, maximum: int = 1, **options):
        return owner.make(OwnedSemaphore, kind, SemaphoreState(value, maximum, **options))

    return make


def acquired(processes, value=1, maximum=1, **options):
    """A semaphore that processes have asked for, in this order."""
    semaphore = SemaphoreState(value, maximum, **options)
    for process in processes:
        semaphore.acquire(Request(process, 1), wait=True)
    return semaphore


def test_a_number_is_good_for_one_request_at_a_time():
    semaphore = acquired("ab")

    with pytest.raises(WireError, match="number 1 for two requests"):
        semaphore.acquire(Request("b", 1), wait=True)


def test_a_permit_that_another_gives_back_is_taken_off_its_oldest_taker_and_counts_once():
    semaphore = acquired("aba", 3, 3)

    semaphore.release_for_other(Request("c"))
    told = semaphore.take_notices()
    assert told == [("b", Notice.RELEASED_BY_OTHER)], "before the other one's last"
    assert semaphore.release("b") == []
    assert (semaphore.holds, semaphore.value) == ({"a": 2}, 1)
    semaphore.release_for_other(Request("a"))
    assert semaphore.take_notices() == []
    assert semaphore.holds == {"a": 1}


def test_where_nothing_is_traced_what_is_given_is_more():
    semaphore = acquired("a", 1, 9, track_holders=False)

    semaphore.release_for_other(Request("b"))
    assert semaphore.take_notices() == []
    assert (semaphore.holds, semaphore.value) == ({"a": 1}, 1)


def test_a_death_is_reported_once_to_the_next_that_keeps_the_permit():
    semaphore = acquired("abcd")
    (answer,) = semaphore.process_died("a", "process 1")
    assert (answer.request.process, answer.status) == ("b", Status.OK_HOLDER_DIED)

    # an interrupt: the report is the next one's
    (answer,) = semaphore.cancel_grant("b", inherited=True)
    assert (answer.request.process, answer.status) == ("c", Status.OK_HOLDER_DIED)
    assert answer.text == "process 1"
    (answer,) = semaphore.release("c")
    assert (answer.request.process, answer.status) == ("d", Status.OK)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "try", "cancel", "release", "give", "leave", "lose"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 8),
    ),
    max_size=60,
)


@pytest.mark.timeout(600)
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
            answers = semaphore.release_for_other(Request(process, -1))
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


@pytest.fixture
def lock(semaphore_at):
    return semaphore_at()


@pytest.fixture
def theirs(lock, other):
    return other.remote(lock)


def test_a_free_one_is_taken_at_once_and_a_taken_one_is_not(lock, side, third):
    mine, last = side(lock), third.remote(lock)

    assert mine.acquire(True, None)
    assert mine.local_hold.is_held_by_thread
    for one in (lock, mine, last):
        assert not one.acquire(False, None)
        assert not one.acquire(True, 0)
        assert not one.acquire(True, -1.5)
        assert not one.acquire(True, 0.01)
    mine.release()
    assert mine.acquire(True, 0)
    mine.release()
    assert last.acquire(True, 20)
    assert mine.value() == 0


def test_a_lock_is_released_by_any_thread_and_not_twice(semaphore_at, side):
    mine = side(semaphore_at())
    in_thread(lambda: mine.acquire(True, None))()
    assert not mine.local_hold.is_held_by_thread
    mine.release()

    with pytest.raises(ValueError, match="released too many times"):
        mine.release()


def test_a_recursive_one_is_its_threads_alone(semaphore_at, side):
    lock = semaphore_at(Kind.RLOCK)
    mine = side(lock)
    with pytest.raises(AssertionError, match="not owned by thread"):
        mine.release()
    assert mine.acquire(True, None)
    assert mine.acquire(False, None)
    assert mine.local_hold.count == 2
    with pytest.raises(AssertionError, match="not owned by thread"):
        in_thread(mine.release)()
    for _ in range(2):
        assert not in_thread(lambda: mine.acquire(False, None))()
        assert not in_thread(lambda: lock.acquire(False, None))()
        mine.release()

    assert in_thread(lambda: mine.acquire(False, None))()
    with pytest.raises(AssertionError, match="not owned by thread"):
        mine.release()


def test_it_comes_to_threads_of_all_processes_in_order(lock, other, third):
    holder, theirs = third.remote(lock), other.remote(lock)
    holder.acquire(True, None)
    takers = [theirs, lock, theirs, holder]
    waits = []
    for taker in takers:
        waits.append(in_thread(lambda taker=taker: taker.acquire(True, 20)))
        until(lambda: lock._semaphore.waiting == len(waits))

    for taker, wait in zip(takers, waits, strict=True):
        holder.release()
        assert wait()
        holder = taker


def test_a_process_without_a_permit_asks_before_releasing_one(lock, theirs, third):
    with pytest.raises(ValueError, match="released too many times"):
        theirs.release()
    for holder in (third.remote(lock), lock):
        holder.acquire(True, None)
        theirs.release()
        assert lock.value() == 1

        until(lambda holder=holder: holder.local_hold.held == 0)
        with pytest.raises(ValueError, match="released too many times"):
            holder.release()


@pytest.mark.parametrize("crossing", [False, True])
def test_an_interrupted_wait_at_the_owner_takes_nothing_with_it(lock, monkeypatch, crossing):
    lock.acquire(True, None)

    def interrupted(gate, timeout):
        if crossing:
            lock.release()
        raise KeyboardInterrupt

    monkeypatch.setattr(waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(True, None)
    monkeypatch.undo()

    if not crossing:
        lock.release()
    assert not lock._semaphore.waiting
    assert lock.local_hold.held == 0
    assert lock.acquire(False, None)


@pytest.mark.parametrize("grant", ["comes later", "came", "is on its way"])
def test_an_interrupted_wait_elsewhere_takes_nothing_with_it(lock, theirs, monkeypatch, grant):
    lock.acquire(True, None)
    heard, held_up, take = threading.Event(), [], theirs.on_notice

    def hear(message):
        if grant == "is on its way":
            held_up.append(message)
        else:
            take(message)
        heard.set()

    def interrupted(gate, timeout, read):
        if grant != "comes later":
            lock.release()
            assert heard.wait(20)
        raise KeyboardInterrupt

    theirs.owner.on_notice(theirs.target, hear)
    monkeypatch.setattr(waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(KeyboardInterrupt):
        theirs.acquire(True, None)
    monkeypatch.undo()
    theirs.owner.on_notice(theirs.target, take)
    if grant == "comes later":
        lock.release()
    for message in held_up:
        assert lock.value() == 0
        take(message)

    assert lock.acquire(True, 20)
    assert theirs.local_hold.held == 0
    lock.release()
    assert theirs.acquire(True, 20)
    assert theirs.local_hold.held == 1


def inherits(lock):
    with pytest.warns(HolderDiedWarning, match="died while it held this lock") as caught:
        got = lock.acquire(True, 20)
    assert caught[0].filename == __file__, "it is the user's line"
    return got


@pytest.mark.parametrize("heir, code", [("owner", None), ("third", None), ("owner", 3)])
def test_a_lock_of_one_that_dies_or_fails_is_inherited_with_a_warning(
    lock, other, third, heir, code
):
    other.remote(lock).acquire(True, None)
    mine = lock if heir == "owner" else third.remote(lock)
    waits = in_thread(lambda: inherits(mine))
    until(lambda: lock._semaphore.waiting)
    other.end(code)

    assert waits()
    assert (lock.value(), mine.local_hold.held) == (0, 1)
    mine.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mine.acquire(True, None), "it is told once"


def test_where_warnings_are_errors_it_is_not_kept(lock, other):
    other.remote(lock).acquire(True, None)
    other.die()
    until(lambda: lock.value() == 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HolderDiedWarning, match=r"process \d+ on .* died while it held"):
            lock.acquire(True, None)

    assert lock.acquire(False, None)


def test_permits_of_the_dead_are_gone_unless_they_are_to_be_recovered(semaphore_at, other):
    lost = semaphore_at(Kind.SEMAPHORE, 2, 9, recover=False, report_deaths=False)
    kept = semaphore_at(Kind.SEMAPHORE, 2, 9, report_deaths=False)
    for one in (lost, kept):
        theirs = other.remote(one)
        theirs.acquire(True, None)
        theirs.acquire(True, None)
        assert one.value() == 0
    other.die()

    until(lambda: lost._semaphore.holds == {} and kept.value() == 2)
    assert kept.acquire(True, None)
    assert not lost.acquire(False, None)


def test_after_a_normal_end_it_stays_taken_without_a_handle_too(lock, theirs, other):
    theirs.acquire(True, None)
    theirs.drop(0)
    other.close()
    until(lambda: not lock._references.peers(0))

    assert lock.value() == 0
    assert not lock.acquire(True, 0.01)
    lock.release()
    assert lock.acquire(False, None)


def test_one_that_is_held_without_a_handle_is_let_go_of_with_the_next(lock, theirs, other):
    theirs.acquire(True, None)
    theirs.drop(0)
    again = other.remote(lock)
    assert again is theirs
    again.release()
    again.drop(0)

    until(lambda: not lock._references.peers(0))


@pytest.mark.parametrize("kind", [Kind.LOCK, Kind.RLOCK, Kind.SEMAPHORE])
def test_a_holder_that_was_cut_off_is_fenced(semaphore_at, owner, other, kind):
    lock = semaphore_at(kind)
    theirs = other.remote(lock)
    theirs.acquire(True, None)
    for peer in owner.endpoint.peers():
        peer.close()

    until(lambda: theirs.is_lost)
    for use in (theirs.release, theirs.release, lambda: theirs.acquire(True, None)):
        with pytest.raises(LeaseLostError, match="others may hold it by now"):
            use()


def test_the_owner_ends_when_its_last_words_have_come(lock, theirs, owner):
    lock.acquire(True, None)
    waits = in_thread(lambda: theirs.acquire(True, 20))
    until(lambda: lock._semaphore.waiting)
    lock.release()
    owner.close()

    assert waits()


@pytest.mark.parametrize("leave", ["drop", "die"])
def test_the_owner_does_not_wait_for_processes_that_have_left(lock, theirs, owner, other, leave):
    asked = threading.Event()
    # it is going to leave, and answers no more
    theirs._owner.on_notice(theirs.target, lambda message: asked.set())
    owner.config.linger = 3600
    closing = in_thread(owner.store.close)
    assert asked.wait(20)
    if leave == "drop":
        theirs.drop(0)
    else:
        other.die()

    closing()
