"""Locks, semaphores, conditions, events and barriers between processes as users see them."""

import gc
import multiprocessing
import os
import pickle
import sys
import threading
import time
import weakref

import pytest

import fiber
from children import PATIENCE, finish, start
from fiber.exceptions import HolderDiedError, HolderDiedWarning, PeerLostError
from wire_world import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def take_and_end(lock, how):
    lock.acquire()
    how()


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


def ping_pong(condition, turn, mine, times):
    for _ in range(times):
        with condition:
            assert condition.wait_for(lambda: peek(turn) == mine, PATIENCE)
            turn.get()
            turn.put(1 - mine)
            condition.notify_all()


def peek(queue):
    value = queue.get()
    queue.put(value)
    return value


def lend(results, go_on, lock=None):
    """Make a lock, or a condition with another's lock."""
    results.put(fiber.RLock() if lock is None else fiber.Condition(lock))
    go_on.acquire()


def meet_or_break(barrier, results):
    try:
        results.put(barrier.wait())
    except threading.BrokenBarrierError as error:
        results.put(type(error).__name__)


@pytest.mark.parametrize("where", ["here", "there"])
def test_the_lock_of_a_condition_may_live_in_another_process(where):
    results, go_on = fiber.SimpleQueue(), fiber.Semaphore(0)
    if where == "here":
        lender = start(lend, results, go_on)
        condition = fiber.Condition(results.get())
    else:
        lender = start(lend, results, go_on, fiber.RLock())
        condition = results.get()
    assert condition._owners_differ == (where == "there")
    turn = fiber.SimpleQueue()
    turn.put(0)
    child = start(ping_pong, condition, turn, 1, 20)
    ping_pong(condition, turn, 0, 20)
    finish(child)
    # however deep, it has the lock again
    with condition, condition:
        assert not condition.wait(0.01)
    go_on.release()
    finish(lender)


def test_a_barrier_has_parties_and_a_condition_has_a_lock_of_fiber():
    with pytest.raises(ValueError, match="parties must be > 0"):
        fiber.Barrier(0)
    with pytest.raises(TypeError, match="a condition needs a Lock or RLock of fiber"):
        fiber.Condition(multiprocessing.Lock())


@pytest.mark.parametrize("end", ["abort", "reset", "timeout", "its own timeout", "its action"])
def test_waiting_parties_get_an_error_when_a_barrier_breaks(end):
    barrier = fiber.Barrier(
        2 if end == "its action" else 3,
        action=lambda: 1 / 0,
        timeout=0.01 if end == "its own timeout" else None,
    )
    results = fiber.Queue()
    child = start(meet_or_break, barrier, results)
    if "own" not in end:
        until(lambda: barrier.n_waiting, timeout=PATIENCE)
        assert repr(barrier).endswith(f": waiters=1/{barrier.parties}>")
    if end == "its action":
        with pytest.raises(ZeroDivisionError):
            barrier.wait()
    elif end == "timeout":
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(0.01)
    elif end in ("abort", "reset"):
        getattr(barrier, end)()
    assert results.get() == "BrokenBarrierError"
    finish(child)

    assert barrier.broken == (end != "reset")
    assert repr(barrier).endswith(": broken>") == (end != "reset")
    barrier.reset()
    assert not barrier.broken


def test_using_an_object_of_a_dead_owner_raises_an_error():
    results = fiber.SimpleQueue()

    def make():
        results.put((fiber.Event(), fiber.Condition(), fiber.Barrier(2), fiber.Lock()))

    child = start(make)
    event, condition, barrier, lock = results.get()
    finish(child)
    # the supervisor's word on its end and the end of the connection to it come in any order
    until(lambda: repr(event).endswith(" unknown>"), timeout=PATIENCE)

    for use in (event.set, barrier.abort, condition.acquire, lock.acquire):
        with pytest.raises(PeerLostError, match="lives in"):
            use()
    assert repr(condition) == "<Condition(<RLock(unknown, unknown)>, unknown)>"
    assert repr(barrier).endswith(": unknown>")
    assert repr(event).endswith(" unknown>")


@pytest.mark.parametrize("make", [fiber.Lock, fiber.RLock, fiber.Semaphore])
def test_a_with_statement_keeps_a_lock_that_nothing_else_keeps(make):
    dropped = []

    def made():
        handle = make()
        weakref.finalize(handle._reference, dropped.append, "dropped")
        return handle

    gc.disable()
    try:
        with made():
            assert not dropped
        assert dropped
    finally:
        gc.enable()


def test_a_with_statement_uses_what_a_subclass_has_in_place_of_acquire():
    calls = []

    class Told(fiber.Lock):
        def acquire(self, block=True, timeout=None):
            calls.append("acquire")
            return super().acquire(block, timeout)

    with Told():
        assert calls == ["acquire"]
