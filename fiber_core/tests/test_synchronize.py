"""Locks and semaphores between processes as users see them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time

import pytest

import fiber
from children import PATIENCE, finish, start
from fiber.exceptions import HolderDiedError, HolderDiedWarning

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


# what children do


def count_up(lock, numbers, times):
    for _ in range(times):
        with lock:
            number = numbers.get()
            numbers.put(number + 1)


def use(lock, results):
    results.put((lock.acquire(), lock.acquire(False), repr(lock)))
    try:
        for _ in range(3):
            lock.release()
    except (ValueError, AssertionError) as error:
        results.put(repr(error))


def take_and_end(lock, how):
    lock.acquire()
    how()


# -- one process at a time


@pytest.mark.parametrize("make", [fiber.Lock, fiber.RLock, fiber.Semaphore])
def test_only_one_process_at_a_time_has_it(make):
    lock, numbers = make(), fiber.SimpleQueue()
    numbers.put(0)
    children = [start(count_up, lock, numbers, 50) for _ in range(3)]
    count_up(lock, numbers, 50)
    finish(*children)

    assert numbers.get() == 200


@pytest.mark.parametrize(
    "make, again, text",
    [
        (fiber.Lock, False, "semaphore or lock released too many times"),
        (fiber.RLock, True, "attempt to release recursive lock not owned by thread"),
        (fiber.BoundedSemaphore, False, "semaphore or lock released too many times"),
    ],
)
def test_misuse_is_the_same_error_everywhere(make, again, text):
    lock, results = make(), fiber.SimpleQueue()
    child = start(use, lock, results)
    got, got_again, described = results.get()
    error = results.get()
    finish(child)

    assert (got, got_again) == (True, again)
    assert make.__name__ in described
    assert text in error
    with pytest.raises((ValueError, AssertionError), match=text):
        lock.release()


def test_it_goes_wherever_values_go():
    inner, queue = fiber.Lock(), fiber.Queue()
    here, there = fiber.Pipe()
    queue.put(inner)
    here.send(inner)
    with fiber.Pool(1) as pool:
        assert pool.apply(lambda lock: lock.acquire(False), (inner,))
        # to terminate it would be a holder's death
        pool.close()
        pool.join()
    for one in (queue.get(), pickle.loads(pickle.dumps(inner))):
        assert not one.acquire(False)
    there.recv().release()
    assert inner.acquire(False)


# -- how a holder ends


def test_after_a_normal_end_it_stays_taken_and_is_waited_for_no_longer_than_asked():
    lock = fiber.Lock()
    finish(start(take_and_end, lock, int))
    began = time.monotonic()
    assert not lock.acquire(timeout=0.05)
    assert time.monotonic() - began >= 0.05
    assert not lock.acquire(False)
    assert not lock.acquire(False, 30)
    assert not lock.acquire(timeout=-1)
    assert repr(lock) == "<Lock(owner=SomeOtherProcess)>"
    lock.release()
    assert lock.acquire(False)


@pytest.mark.parametrize(
    "how", [lambda: sys.exit(3), lambda: os._exit(0)], ids=["a code", "no cleanup"]
)
def test_after_any_other_end_it_is_passed_on(how):
    lock, strict = fiber.Lock(), fiber.RLock(on_holder_death="raise")
    for one in (lock, strict):
        child = start(take_and_end, one, how)
        child.join(PATIENCE)
    with pytest.warns(HolderDiedWarning, match="process .* died while it held this lock"):
        assert lock.acquire(timeout=PATIENCE)
    with pytest.raises(HolderDiedError, match="died while it held this rlock"):
        strict.acquire(timeout=PATIENCE)

    assert strict.acquire(False)
    with pytest.raises(ValueError, match="expected 'warn' or 'raise'"):
        fiber.Lock(on_holder_death="ignore")


# -- as the stdlib


def test_a_semaphore_counts():
    semaphore = fiber.Semaphore(2)
    assert (repr(semaphore), semaphore.get_value()) == ("<Semaphore(value=2)>", 2)
    with semaphore:
        assert semaphore.get_value() == 1
    semaphore.release()
    assert semaphore.get_value() == 3
    assert repr(fiber.BoundedSemaphore(3)) == "<BoundedSemaphore(value=3, maxvalue=3)>"


@pytest.mark.parametrize("value", [-1, "a", 1.5, 2**40])
def test_a_bad_number_of_permits_is_refused(value):
    raised = []
    for module in (multiprocessing, fiber):
        with pytest.raises((OSError, TypeError, OverflowError)) as caught:
            module.Semaphore(value)
        raised.append(caught.type)
    assert raised[0] is raised[1]


def test_holders_are_described_as_the_stdlib_does():
    for module in (multiprocessing, fiber):
        lock, recursive = module.Lock(), module.RLock()
        seen = [repr(lock), repr(recursive)]
        with lock, recursive, recursive:
            seen += [repr(lock), repr(recursive)]
        assert seen == [
            "<Lock(owner=None)>",
            "<RLock(None, 0)>",
            "<Lock(owner=MainProcess)>",
            "<RLock(MainProcess, 2)>",
        ]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="locked() is new in Python 3.14")
def test_locked_tells_whether_it_could_be_taken():
    lock = fiber.Lock()
    assert not lock.locked()
    with lock:
        assert lock.locked()
