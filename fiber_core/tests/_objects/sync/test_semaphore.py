"""Locks and semaphores at their owner and in other processes: threads, interrupts, ends."""

import threading
import warnings

import pytest

from fiber._objects.address import Kind
from fiber._objects.sync import owned_waitable, remote_waitable
from fiber._objects.sync.protocol import REQUEST, Op
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import (
    HolderDiedError,
    HolderDiedWarning,
    LeaseLostError,
    PeerLostError,
    WireError,
)
from objects_world import in_thread
from wire_world import until


class Interrupt(BaseException):
    pass


@pytest.fixture
def semaphore_at(owner):
    """Makes permits that live with the owner."""

    def make(kind: Kind = Kind.LOCK, value: int = 1, maximum: int = 1, **options):
        made = OwnedSemaphore(owner.store, kind, SemaphoreState(value, maximum, **options))
        made.hold(0)
        return made

    return make


@pytest.fixture(params=["owner", "other"])
def side(request, other):
    """What a process has of permits: their owner, or another one."""
    return other.remote if request.param == "other" else lambda lock: lock


def inherits(lock):
    with pytest.warns(HolderDiedWarning):
        return lock.acquire(True, 20)


# -- threads


def test_a_free_one_is_taken_at_once_and_a_taken_one_is_not(semaphore_at, side, third):
    lock = semaphore_at()
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


def test_threads_pass_it_on_in_order(semaphore_at, side):
    lock = semaphore_at()
    mine = side(lock)
    mine.acquire(True, None)
    order, threads = [], []

    def take(number):
        mine.acquire(True, None)
        order.append(number)
        mine.release()

    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        until(lambda n=number: lock._semaphore.waiting == n + 1)
    mine.release()
    for thread in threads:
        thread.join(20)

    assert order == list(range(5))


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


def test_it_is_released_and_taken_again_as_often_as_it_was(semaphore_at, side):
    lock = semaphore_at(Kind.RLOCK)
    mine = side(lock)
    for _ in range(3):
        mine.acquire(True, None)
    depth = mine.release_save()
    assert mine.value() == 1
    mine.acquire(True, None)
    mine.local_hold.restore_depth(depth)

    assert mine.local_hold.count == 3


def test_permits_are_counted(semaphore_at, other):
    semaphore = semaphore_at(Kind.SEMAPHORE, 0, 5)
    theirs = other.remote(semaphore)
    theirs.release()
    theirs.release()
    assert semaphore.value() == 2
    assert theirs.acquire(True, 0)

    assert theirs.value() == 1
    assert theirs.local_hold.count == 1


# -- several processes


def test_it_comes_to_those_who_wait_in_order(semaphore_at, other, third):
    lock = semaphore_at()
    theirs, last = other.remote(lock), third.remote(lock)
    lock.acquire(True, None)
    first = in_thread(lambda: theirs.acquire(True, 20))
    until(lambda: lock._semaphore.waiting == 1)
    second = in_thread(lambda: last.acquire(True, 20))
    until(lambda: lock._semaphore.waiting == 2)
    lock.release()

    assert first()
    assert lock._semaphore.waiting == 1
    theirs.release()
    assert second()


def test_a_process_without_a_permit_asks_before_releasing_one(semaphore_at, other, third):
    lock = semaphore_at()
    theirs, last = other.remote(lock), third.remote(lock)
    with pytest.raises(ValueError, match="released too many times"):
        theirs.release()
    last.acquire(True, None)
    theirs.release()
    assert lock.value() == 1

    until(lambda: last.local_hold.held == 0)
    with pytest.raises(ValueError, match="released too many times"):
        last.release()


def test_a_permit_of_the_owner_is_given_back_by_another(semaphore_at, other):
    lock = semaphore_at()
    lock.acquire(True, None)
    other.remote(lock).release()

    assert lock.local_hold.held == 0
    with pytest.raises(ValueError, match="released too many times"):
        lock.release()


# -- interrupts


@pytest.mark.parametrize("crossing", [False, True])
def test_an_interrupted_wait_at_the_owner_takes_nothing_with_it(
    semaphore_at, monkeypatch, crossing
):
    lock = semaphore_at()
    lock.acquire(True, None)

    def interrupted(gate, timeout):
        if crossing:
            lock.release()
        raise Interrupt

    monkeypatch.setattr(owned_waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(Interrupt):
        lock.acquire(True, None)
    monkeypatch.undo()

    if not crossing:
        lock.release()
    assert not lock._semaphore.waiting
    assert lock.local_hold.held == 0
    assert lock.acquire(False, None)


@pytest.mark.parametrize("crossing", [False, True])
def test_an_interrupted_wait_elsewhere_takes_nothing_with_it(
    semaphore_at, other, monkeypatch, crossing
):
    lock = semaphore_at()
    theirs = other.remote(lock)
    lock.acquire(True, None)

    def interrupted(gate, timeout):
        if crossing:
            lock.release()
            until(lambda: any(sent.reply for sent in seen))
        raise Interrupt

    seen = []
    make = remote_waitable._SentRequest
    monkeypatch.setattr(
        remote_waitable, "_SentRequest", lambda *given: seen.append(make(*given)) or seen[-1]
    )
    monkeypatch.setattr(remote_waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(Interrupt):
        theirs.acquire(True, None)
    monkeypatch.undo()
    if not crossing:
        lock.release()

    assert lock.acquire(True, 20)
    lock.release()
    assert theirs.acquire(True, 20)
    assert theirs.local_hold.held == 1


def test_an_interrupt_at_the_moment_of_the_grant_takes_nothing_with_it(
    semaphore_at, other, monkeypatch
):
    lock = semaphore_at()
    theirs = other.remote(lock)
    lock.acquire(True, None)
    held_up = []
    take = theirs._on_answer
    monkeypatch.setattr(theirs, "on_notice", held_up.append)
    theirs._owner.on_notice(theirs.target, theirs.on_notice)

    def interrupted(gate, timeout):
        lock.release()
        until(lambda: held_up)
        raise Interrupt

    monkeypatch.setattr(remote_waitable, "wait_for_wakeup", interrupted)
    with pytest.raises(Interrupt):
        theirs.acquire(True, None)
    assert lock.value() == 0
    take(held_up[0])

    assert lock.acquire(True, 20)
    assert theirs.local_hold.held == 0


# -- ends of processes


@pytest.mark.parametrize("heir", ["owner", "third"])
def test_a_lock_is_inherited_with_a_warning(semaphore_at, other, third, heir):
    lock = semaphore_at()
    other.remote(lock).acquire(True, None)
    mine = lock if heir == "owner" else third.remote(lock)
    waits = in_thread(lambda: inherits(mine))
    until(lambda: lock._semaphore.waiting)
    other.die()

    assert waits()
    assert (lock.value(), mine.local_hold.held) == (0, 1)
    mine.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mine.acquire(True, None), "it is told once"


def test_where_warnings_are_errors_it_is_not_kept(semaphore_at, other):
    lock = semaphore_at()
    other.remote(lock).acquire(True, None)
    other.die()
    until(lambda: lock.value() == 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HolderDiedWarning, match=r"process \d+ on .* died while it held"):
            lock.acquire(True, None)

    assert lock.acquire(False, None)


def test_or_its_next_holder_gets_an_error_and_the_one_after_it_the_lock(semaphore_at, other):
    lock = semaphore_at(Kind.RLOCK, refuse_after_death=True)
    other.remote(lock).acquire(True, None)
    other.die()
    until(lambda: lock.value() == 1)
    with pytest.raises(HolderDiedError, match="may be half changed"):
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

    until(lambda: kept.value() == 2)
    owner_has_heard = lost._semaphore.holds == {}
    assert owner_has_heard or lost.value() == 0
    assert kept.acquire(True, None)
    assert not lost.acquire(False, None)


@pytest.mark.parametrize("has_handle", [True, False], ids=["with a handle", "without a handle"])
def test_after_a_normal_end_it_stays_taken(semaphore_at, other, has_handle):
    lock = semaphore_at()
    theirs = other.remote(lock)
    theirs.acquire(True, None)
    if not has_handle:
        theirs.drop(0)
    other.close()
    until(lambda: not lock._references.peers(0))

    assert lock.value() == 0
    assert not lock.acquire(True, 0.01)
    lock.release()
    assert lock.acquire(False, None)


def test_one_that_is_held_without_a_handle_is_let_go_of_with_the_next(semaphore_at, other):
    lock = semaphore_at()
    theirs = other.remote(lock)
    theirs.acquire(True, None)
    theirs.drop(0)
    again = other.remote(lock)
    assert again is theirs
    again.release()
    again.drop(0)

    until(lambda: not lock._references.peers(0))


def test_an_end_with_a_code_is_a_death(semaphore_at, other):
    lock = semaphore_at()
    other.remote(lock).acquire(True, None)
    other.exit_code = 3
    other.close()

    with pytest.warns(HolderDiedWarning):
        assert lock.acquire(True, 20)


def test_waiting_threads_get_an_error_when_the_owner_dies(semaphore_at, owner, other):
    lock = semaphore_at()
    lock.acquire(True, None)
    theirs = other.remote(lock)
    waits = in_thread(lambda: theirs.acquire(True, 20))
    until(lambda: lock._semaphore.waiting)
    owner.die()

    with pytest.raises(PeerLostError, match="process that this lock lives in is gone") as caught:
        waits()
    assert not isinstance(caught.value, LeaseLostError)
    with pytest.raises(PeerLostError):
        theirs.acquire(True, None)


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


def test_the_owner_ends_when_its_last_words_have_come(semaphore_at, owner, other):
    lock = semaphore_at()
    lock.acquire(True, None)
    theirs = other.remote(lock)
    waits = in_thread(lambda: theirs.acquire(True, 20))
    until(lambda: lock._semaphore.waiting)
    lock.release()
    owner.close()

    assert waits()


@pytest.mark.parametrize("leave", ["drop", "die"])
def test_the_owner_does_not_wait_for_processes_that_have_left(semaphore_at, owner, other, leave):
    lock = semaphore_at()
    theirs = other.remote(lock)
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


@pytest.mark.parametrize(
    "body, text",
    [
        (REQUEST.pack(Op.RELEASE_FOR_OTHER, 1, 0), "operation"),
        (REQUEST.pack(200, 1, 0), "operation"),
        (bytes([Op.VALUE]), "bytes"),
    ],
    ids=["another's release of a recursive one", "unknown", "too short"],
)
def test_what_makes_no_sense_is_refused(semaphore_at, body, text):
    with pytest.raises(WireError, match=text):
        semaphore_at(Kind.RLOCK).on_message(object(), Message(Frame.CAST, 1, 1, memoryview(body)))
