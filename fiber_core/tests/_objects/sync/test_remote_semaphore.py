"""Locks and semaphores in another process than their owner's."""

import threading

import pytest

from fiber._objects.address import Kind
from fiber._objects.sync import remote_waitable
from fiber.exceptions import HolderDiedWarning, LeaseLostError, PeerLostError
from objects_world import in_thread
from wire_world import until


def inherits(lock):
    with pytest.warns(HolderDiedWarning):
        return lock.acquire(True, 20)


def test_it_is_taken_and_given_back(semaphore_at, other, third):
    lock = semaphore_at()
    theirs, last = other.remote(lock), third.remote(lock)
    assert theirs.acquire(True, None)
    assert theirs.local_hold.is_held_by_thread
    assert not last.acquire(False, None)
    assert not last.acquire(True, 0.01)
    assert not lock.acquire(False, None)
    theirs.release()

    assert last.acquire(True, 20)
    assert theirs.value() == 0


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


def test_a_recursive_one_is_its_threads_alone(semaphore_at, other):
    lock = semaphore_at(Kind.RLOCK)
    theirs = other.remote(lock)
    with pytest.raises(AssertionError, match="not owned by thread"):
        theirs.release()
    theirs.acquire(True, None)
    theirs.acquire(True, None)
    with pytest.raises(AssertionError, match="not owned by thread"):
        in_thread(theirs.release)()
    assert not in_thread(lambda: theirs.acquire(False, None))()
    theirs.release()
    assert not lock.acquire(False, None)
    theirs.release()

    assert lock.acquire(True, 20)


def test_permits_are_counted(semaphore_at, other):
    semaphore = semaphore_at(Kind.SEMAPHORE, 0, 5)
    theirs = other.remote(semaphore)
    theirs.release()
    theirs.release()
    assert semaphore.value() == 2
    assert theirs.acquire(True, 0)

    assert theirs.value() == 1
    assert theirs.local_hold.count == 1


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("crossing", [False, True])
def test_an_interrupted_wait_takes_nothing_with_it(semaphore_at, other, monkeypatch, crossing):
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


# -- ends


def test_after_a_normal_end_it_stays_taken(semaphore_at, other):
    lock = semaphore_at()
    other.remote(lock).acquire(True, None)
    other.close()
    until(lambda: not lock._references.peers(0))

    assert lock.value() == 0
    assert not lock.acquire(True, 0.01)
    lock.release()
    assert lock.acquire(False, None)


def test_also_without_a_handle(semaphore_at, other):
    lock = semaphore_at()
    theirs = other.remote(lock)
    theirs.acquire(True, None)
    theirs.drop(0)
    other.close()
    until(lambda: not lock._references.peers(0))

    assert not lock.acquire(True, 0.01)


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


def test_another_process_inherits_from_the_dead(semaphore_at, other, third):
    lock = semaphore_at()
    other.remote(lock).acquire(True, None)
    last = third.remote(lock)
    waits = in_thread(lambda: inherits(last))
    until(lambda: lock._semaphore.waiting)
    other.die()

    assert waits()
    assert last.local_hold.held == 1


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
