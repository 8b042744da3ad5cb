"""Whoever holds or waits for something is killed at a random moment; the others go on.

Each round is one primitive in the process of the test, several children that use it, and one of
them that is killed while they do. Everybody else must get what is documented, and soon.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import warnings

import pytest

import fiber
import process_signals
import soak
from children import PATIENCE, finish, start
from fiber.exceptions import HolderDiedError, HolderDiedWarning, LeaseLostError, PeerLostError

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(3600 if soak.is_full() else 120),
]

TURNS = 30


def kill(child, rng):
    """Kill a child in a moment; once it is gone for certain."""
    # the pace is random, not waiting for anything: faults come when they come
    threading.Event().wait(rng.uniform(0, 0.05))
    process_signals.kill(child)
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL


@contextlib.contextmanager
def killed_meanwhile(child, seed):
    """Kill a child at some moment of the block, and end the block when it is gone."""
    killing = threading.Thread(target=kill, args=(child, random.Random(seed)))
    killing.start()
    yield
    killing.join()


def all_ready(ready, count):
    for _ in range(count):
        assert ready.acquire(timeout=PATIENCE)


# what children do


def take_turns(lock, ready, turns):
    ready.release()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HolderDiedWarning)
        for _ in range(turns):
            try:
                with lock:
                    pass
            except HolderDiedError:
                continue


def take_turns_for_ever(lock, ready):
    ready.release()
    while True:
        with lock:
            pass


def wait_for_turns(condition, ready, seen, turns):
    with condition:
        ready.release()
        for _ in range(turns):
            # no notification is lost with the one who is killed, so nobody waits that long
            assert condition.wait(PATIENCE)
    seen.put(True)


def wait_for_ever(condition, ready):
    with condition:
        ready.release()
        while True:
            condition.wait()


def follow(event, cleared, ready, turns):
    ready.release()
    for _ in range(turns):
        assert event.wait(PATIENCE)
        assert cleared.wait(PATIENCE)


def follow_for_ever(event, cleared, ready):
    follow(event, cleared, ready, 10**9)


def meet_for_ever(barrier, ready, ended):
    ready.release()
    try:
        while True:
            barrier.wait()
    except threading.BrokenBarrierError:
        ended.release()


def own(results, ready):
    results.put(
        (fiber.Lock(), fiber.Semaphore(0), fiber.Condition(), fiber.Event(), fiber.Barrier(9))
    )
    ready.release()
    threading.Event().wait()


# -- locks and semaphores

MAKERS = {
    "lock": fiber.Lock,
    "rlock": fiber.RLock,
    "raising lock": lambda: fiber.Lock(on_holder_death="raise"),
    "semaphore": lambda: fiber.Semaphore(2, recover=True),
    "bounded semaphore": lambda: fiber.BoundedSemaphore(2, recover=True),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_others_go_on_when_a_holder_is_killed(name):
    warned = 0
    for current in soak.rounds(f"killed holder of a {name}", 200):
        lock, ready = MAKERS[name](), fiber.Semaphore(0)
        victim = start(take_turns_for_ever, lock, ready)
        others = [start(take_turns, lock, ready, TURNS) for _ in range(2)]
        all_ready(ready, 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with killed_meanwhile(victim, current.seed):
                for _ in range(TURNS):
                    try:
                        assert lock.acquire(timeout=PATIENCE)
                    except HolderDiedError:
                        warned += 1
                    else:
                        lock.release()
            finish(*others)
        assert {warning.filename for warning in caught} <= {__file__}, "it names the user's line"
        warned += len(caught)
        permits = 2 if "semaphore" in name else 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HolderDiedWarning)
            assert taken(lock, permits) == permits, "every permit came back"
        assert name == "rlock" or not lock.acquire(False)
        current.note(warned=warned)


def taken(lock, permits):
    """How many permits this process can take."""
    count = 0
    while count < permits:
        try:
            # whoever was told of the death has not taken it
            assert lock.acquire(timeout=PATIENCE)
        except HolderDiedError:
            continue
        count += 1
    return count


# -- conditions


def test_nobody_misses_a_notification_when_another_sleeper_is_killed():
    for current in soak.rounds("killed sleeper", 200):
        condition, ready, seen = fiber.Condition(), fiber.Semaphore(0), fiber.Queue()
        victim = start(wait_for_ever, condition, ready)
        others = [start(wait_for_turns, condition, ready, seen, TURNS) for _ in range(2)]
        all_ready(ready, 3)
        with warnings.catch_warnings(), killed_meanwhile(victim, current.seed):
            warnings.simplefilter("ignore", HolderDiedWarning)
            while seen.qsize() < 2:
                with condition:
                    condition.notify()
        finish(*others)


# -- events


def test_nobody_misses_an_event_when_another_one_waiting_is_killed():
    for current in soak.rounds("killed waiter for an event", 200):
        event, cleared, ready = fiber.Event(), fiber.Event(), fiber.Semaphore(0)
        victim = start(follow_for_ever, event, cleared, ready)
        other = start(follow, event, cleared, ready, TURNS)
        all_ready(ready, 2)
        with killed_meanwhile(victim, current.seed):
            while other.is_alive():
                cleared.clear()
                event.set()
                event.clear()
                cleared.set()
        finish(other)


# -- barriers


def test_a_barrier_breaks_for_all_when_a_party_is_killed():
    for current in soak.rounds("killed party of a barrier", 200):
        barrier, ready, ended = fiber.Barrier(4), fiber.Semaphore(0), fiber.Semaphore(0)
        children = [start(meet_for_ever, barrier, ready, ended) for _ in range(3)]
        all_ready(ready, len(children))
        victim = random.Random(current.seed).choice(children)
        rounds = 0
        with (
            killed_meanwhile(victim, current.seed),
            pytest.raises(threading.BrokenBarrierError),
        ):
            while True:
                barrier.wait(PATIENCE)
                rounds += 1
        for _ in range(2):
            assert ended.acquire(timeout=PATIENCE)
        finish(*(child for child in children if child is not victim))
        current.note(rounds=rounds)


# -- owners


def test_whoever_waits_is_told_when_the_owner_is_killed():
    for current in soak.rounds("killed owner", 200):
        rng = random.Random(current.seed)
        results, ready = fiber.SimpleQueue(), fiber.Semaphore(0)
        victim = start(own, results, ready)
        lock, semaphore, condition, event, barrier = results.get()
        assert ready.acquire(timeout=PATIENCE)
        lock.acquire()

        def sleep(condition=condition):
            with condition:
                condition.wait()

        told = []

        def use(wait, told=told):
            try:
                wait()
            except PeerLostError as error:
                told.append(error)

        waits = (lock.acquire, semaphore.acquire, sleep, event.wait, barrier.wait)
        threads = [threading.Thread(target=use, args=(wait,)) for wait in waits]
        for thread in threads:
            thread.start()
        kill(victim, rng)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert len(told) == len(waits)
        with pytest.raises(LeaseLostError):
            lock.release()
