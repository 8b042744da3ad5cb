"""Conditions, events and barriers between processes as users see them."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

import fiber
from children import PATIENCE, finish, start
from fiber.exceptions import PeerLostError
from wire_world import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


# what children do


def wait_once(condition, asleep, results):
    with condition:
        asleep.release()
        results.put(condition.wait())


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


def meet(barrier, results, rounds):
    for _ in range(rounds):
        results.put(barrier.wait(PATIENCE))


def meet_or_break(barrier, results):
    try:
        results.put(barrier.wait())
    except threading.BrokenBarrierError as error:
        results.put(type(error).__name__)


# -- conditions


@pytest.mark.parametrize("make", [fiber.RLock, fiber.Lock])
def test_processes_and_threads_are_woken_one_by_one_and_all_at_once(make):
    condition, asleep, results = fiber.Condition(make()), fiber.Semaphore(0), fiber.Queue()
    children = [start(wait_once, condition, asleep, results) for _ in range(3)]
    thread = threading.Thread(target=wait_once, args=(condition, asleep, results))
    thread.start()
    for _ in range(4):
        asleep.acquire()
    with condition:
        assert repr(condition).endswith(", 4)>")
        condition.notify()
    assert results.get() is True
    with condition:
        assert results.empty()
        condition.notify(2)
    assert [results.get(), results.get()] == [True, True]
    with condition:
        assert results.empty()
        condition.notify_all()
        condition.notify_all()
    assert results.get() is True
    thread.join()
    finish(*children)


@pytest.mark.parametrize("where", ["here", "there"])
def test_its_lock_may_live_in_another_process(where):
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
    with condition:
        assert not condition.wait(0.01)
    go_on.release()
    finish(lender)


def test_it_is_waited_for_no_longer_than_asked():
    condition = fiber.Condition()
    with condition:
        assert condition.wait(0.01) is False
        assert condition.wait(0) is False
        assert condition.wait(-1) is False
        assert condition.wait_for(list, 0.01) == []
        assert condition.wait_for(lambda: "yes", 0) == "yes"


def test_misuse_is_the_stdlibs_error():
    for module in (multiprocessing, fiber):
        condition = module.Condition()
        with pytest.raises(AssertionError, match=r"must acquire\(\) condition before using wait"):
            condition.wait()
        with pytest.raises(AssertionError, match="lock is not owned"):
            condition.notify()
        with pytest.raises(AssertionError, match="not owned by thread"):
            condition.release()
    with pytest.raises(TypeError, match="a condition needs a Lock or RLock of fiber"):
        fiber.Condition(multiprocessing.Lock())


# -- events


def test_an_event_is_seen_by_all():
    event, results = fiber.Event(), fiber.Queue()
    children = [start(lambda: results.put(event.wait())) for _ in range(2)]
    children.append(start(event.set))
    assert event.wait(PATIENCE)
    assert [results.get(), results.get()] == [True, True]
    finish(*children)
    assert event.is_set()
    assert repr(event).endswith(" set>")
    event.clear()
    finish(start(lambda: results.put(event.wait(0.01))))

    assert results.get() is False
    assert repr(event).endswith(" unset>")


# -- barriers


def test_a_barrier_opens_when_all_have_arrived_and_its_action_has_run():
    ran, results = fiber.Queue(), fiber.Queue()
    barrier = fiber.Barrier(3, lambda: ran.put("ran"))
    children = [start(meet, barrier, results, 5) for _ in range(2)]
    meet(barrier, results, 5)
    finish(*children)

    assert sorted(results.get() for _ in range(15)) == [0] * 5 + [1] * 5 + [2] * 5
    assert [ran.get() for _ in range(5)] == ["ran"] * 5
    assert ran.empty()
    assert (barrier.parties, barrier.n_waiting, barrier.broken) == (3, 0, False)


@pytest.mark.parametrize("end", ["abort", "reset", "timeout", "its own timeout", "its action"])
def test_waiting_parties_get_an_error_when_it_breaks(end):
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


def test_a_barrier_has_parties():
    with pytest.raises(ValueError, match="parties must be > 0"):
        fiber.Barrier(0)


def test_using_an_object_of_a_dead_owner_raises_an_error():
    results = fiber.SimpleQueue()

    def make():
        results.put((fiber.Event(), fiber.Condition(), fiber.Barrier(2), fiber.Lock()))

    child = start(make)
    event, condition, barrier, lock = results.get()
    finish(child)

    for use in (
        event.wait,
        event.set,
        barrier.wait,
        barrier.abort,
        condition.acquire,
        lock.acquire,
    ):
        with pytest.raises(PeerLostError, match="lives in"):
            use()
    assert repr(condition) == "<Condition(<RLock(unknown, unknown)>, unknown)>"
    assert repr(barrier).endswith(": unknown>")
    assert repr(event).endswith(" unknown>")
