"""Locks and semaphores at their owner: threads, interrupts, other processes' deaths."""

import threading
import warnings

import pytest

from fiber._objects.address import Kind
from fiber._objects.sync import owned_waitable
from fiber._objects.sync.protocol import REQUEST, Op
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import HolderDiedError, HolderDiedWarning, WireError
from objects_world import in_thread
from wire_world import until


def inherits(lock):
    with pytest.warns(HolderDiedWarning):
        return lock.acquire(True, 20)


def test_a_free_one_is_taken_at_once_and_a_taken_one_is_not(semaphore_at):
    lock = semaphore_at()

    assert lock.acquire(True, None)
    assert not lock.acquire(False, None)
    assert not lock.acquire(True, 0)
    assert not lock.acquire(True, -1.5)
    assert not lock.acquire(True, 0.01)
    lock.release()
    assert lock.acquire(True, 0)


def test_a_thread_waits_until_another_gives_it_back(semaphore_at):
    lock = semaphore_at()
    lock.acquire(True, None)
    waits = in_thread(lambda: lock.acquire(True, 20))
    until(lambda: lock._semaphore.waiting)
    lock.release()

    assert waits()
    assert not lock.acquire(False, None)


def test_a_lock_is_released_by_any_thread_and_not_twice(semaphore_at):
    lock = semaphore_at()
    in_thread(lambda: lock.acquire(True, None))()
    assert not lock.local_hold.is_held_by_thread
    lock.release()

    with pytest.raises(ValueError, match="released too many times"):
        lock.release()


def test_a_recursive_one_is_its_threads_alone(semaphore_at):
    lock = semaphore_at(Kind.RLOCK)
    assert lock.acquire(True, None)
    assert lock.acquire(False, None)
    assert lock.local_hold.count == 2
    with pytest.raises(AssertionError, match="not owned by thread"):
        in_thread(lock.release)()
    assert not in_thread(lambda: lock.acquire(False, None))()
    lock.release()
    assert not in_thread(lambda: lock.acquire(False, None))()
    lock.release()

    assert in_thread(lambda: lock.acquire(False, None))()
    with pytest.raises(AssertionError, match="not owned by thread"):
        lock.release()


def test_it_is_released_and_taken_again_as_often_as_it_was(semaphore_at):
    lock = semaphore_at(Kind.RLOCK)
    for _ in range(3):
        lock.acquire(True, None)
    depth = lock.release_save()
    assert lock.value() == 1
    lock.acquire(True, None)
    lock.local_hold.restore_depth(depth)

    assert lock.local_hold.count == 3


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("crossing", [False, True])
def test_an_interrupted_wait_takes_nothing_with_it(semaphore_at, monkeypatch, crossing):
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


# -- another process dies


def test_a_lock_is_inherited_with_a_warning(semaphore_at, other):
    lock = semaphore_at()
    theirs = other.remote(lock)
    assert theirs.acquire(True, None)
    waits = in_thread(lambda: inherits(lock))
    until(lambda: lock._semaphore.waiting)
    other.die()

    assert waits()
    assert lock.value() == 0
    lock.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lock.acquire(True, None), "it is told once"


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


# -- hostile peers


@pytest.mark.parametrize("op", [Op.RELEASE_FOR_OTHER, 200])
def test_what_makes_no_sense_is_refused(semaphore_at, op):
    lock = semaphore_at(Kind.RLOCK)
    body = memoryview(REQUEST.pack(op, 1, 0))

    with pytest.raises(WireError):
        lock.on_message(object(), Message(Frame.CAST, 1, 1, body))


def test_a_message_that_is_too_short_is_refused(semaphore_at):
    with pytest.raises(WireError, match="bytes"):
        semaphore_at().on_message(
            object(), Message(Frame.CAST, 1, 1, memoryview(bytes([Op.VALUE])))
        )


def test_threads_pass_it_on_in_order(semaphore_at):
    lock = semaphore_at()
    lock.acquire(True, None)
    order, threads = [], []

    def take(number):
        lock.acquire(True, None)
        order.append(number)
        lock.release()

    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        until(lambda n=number: lock._semaphore.waiting == n + 1)
    lock.release()
    for thread in threads:
        thread.join(20)

    assert order == list(range(5))
