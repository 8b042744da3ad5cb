"""Whoever holds or waits for something is killed at a random moment; the others go on.

Each round is one primitive in the process of the test, several children that use it, and one of
them that is killed while they do. Everybody else must get what is documented, and soon.
"""

import contextlib
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import fiber
import soak
from children import PATIENCE, Crew, be_elsewhere, finish, killed, killed_meanwhile, start
from fiber.exceptions import HolderDiedError, HolderDiedWarning, LeaseLostError, PeerLostError
from waiting import until

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(3600 if soak.is_full() else 120),
]

TURNS, FOR_EVER = 30, 10**9


def all_ready(ready, count):
    for _ in range(count):
        assert ready.acquire(timeout=PATIENCE)


def take_turns(lock, ready, turns):
    ready.release()
    warnings.simplefilter("ignore", HolderDiedWarning)
    for _ in range(turns):
        try:
            with lock:
                pass
        except HolderDiedError:
            continue


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


@pytest.mark.parametrize(
    "make, permits",
    [
        (fiber.Lock, 1),
        (fiber.RLock, 1),
        (lambda: fiber.Lock(on_holder_death="raise"), 1),
        (lambda: fiber.Semaphore(2, recover=True), 2),
        (lambda: fiber.BoundedSemaphore(2, recover=True), 2),
    ],
    ids=["lock", "rlock", "raising lock", "semaphore", "bounded semaphore"],
)
def test_the_others_go_on_when_a_holder_is_killed(request, make, permits):
    name = request.node.callspec.id
    for current in soak.rounds(f"killed holder of a {name}", 200):
        lock, ready, told = make(), fiber.Semaphore(0), 0
        victim = start(take_turns, lock, ready, FOR_EVER)
        others = [start(take_turns, lock, ready, TURNS) for _ in range(2)]
        all_ready(ready, 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with killed_meanwhile(victim, current.rng):
                for _ in range(TURNS):
                    try:
                        assert lock.acquire(timeout=PATIENCE)
                    except HolderDiedError:
                        told += 1
                    else:
                        lock.release()
            finish(*others)
            assert taken(lock, permits) == permits, "every permit came back"
        assert {warning.filename for warning in caught} <= {__file__}, "it names the user's line"
        assert name == "rlock" or not lock.acquire(False)
        current.note(told=told + len(caught))


def use_alone(lock, ready, hold):
    for _ in range(10):
        with lock:
            pass
    if hold:
        lock.acquire()
    ready.release()
    threading.Event().wait()


@pytest.mark.parametrize("hold", [True, False])
def test_whoever_is_killed_after_it_used_a_lock_alone_died_as_its_holder_or_not(hold):
    lock, ready = fiber.Lock(), fiber.Semaphore(0)
    child = start(use_alone, lock, ready, hold)
    all_ready(ready, 1)
    killed(child)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert lock.acquire(timeout=PATIENCE)
    assert [warning.category for warning in caught] == [HolderDiedWarning] * hold


# -- locks of values, which may be held where their memory is and elsewhere

ADDERS = 3


def add(value, counts, holder, slot):
    """Count, each time noted first, so that a death in between shows as one too many there."""
    warnings.simplefilter("ignore", HolderDiedWarning)
    while True:
        with value.get_lock():
            holder.value = slot + 1
            counts[slot] += 1
            value.value += 1
            holder.value = 0


def add_from_elsewhere(inbox):
    """The same on what tells that it is another host, so that memory is reached by messages."""
    be_elsewhere()
    add(*inbox.get())


def slot_of(holder):
    """Whoever has the lock, or has just had it."""
    found = 0

    def is_held():
        nonlocal found
        found = holder.value
        return found

    until(is_held)
    return found - 1


def test_a_dead_holder_of_a_values_lock_stops_nobody():
    value, counts = fiber.Value("q", 0), fiber.RawArray("q", ADDERS)
    holder, inbox = fiber.RawValue("q", 0), fiber.SimpleQueue()

    def begin(slot):
        mine = value, counts, holder, slot
        if slot:
            return start(add, *mine)
        inbox.put(mine)
        return start(add_from_elsewhere, inbox)

    with contextlib.closing(Crew(ADDERS, begin)) as adders:
        for kills, current in enumerate(soak.rounds("killed holder of a value", 200, least=8), 1):
            slot = slot_of(holder)
            for _ in range(current.rng.randrange(2000)):
                pass
            adders.kill(slot)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert value.acquire(timeout=PATIENCE)
            value.release()
            before = counts[:]
            others = [n for n in range(ADDERS) if n != slot]
            until(lambda before=before, others=others: all(counts[n] > before[n] for n in others))
            # who dies in the middle may have noted what it did not add
            with value:
                missing = sum(counts) - value.value
            assert 0 <= missing <= kills
            adders.replace(slot)
            current.note(slot=slot, told=len(told), missing=missing)


def wait_for_turns(condition, ready, seen, turns):
    with condition:
        ready.release()
        for _ in range(turns):
            # no notification is lost with the one who is killed, so nobody waits that long
            assert condition.wait(PATIENCE)
    seen.put(True)


def test_nobody_misses_a_notification_when_another_sleeper_is_killed():
    for current in soak.rounds("killed sleeper", 200):
        condition, ready, seen = fiber.Condition(), fiber.Semaphore(0), fiber.Queue()
        victim = start(wait_for_turns, condition, ready, seen, FOR_EVER)
        others = [start(wait_for_turns, condition, ready, seen, TURNS) for _ in range(2)]
        all_ready(ready, 3)
        with warnings.catch_warnings(), killed_meanwhile(victim, current.rng):
            warnings.simplefilter("ignore", HolderDiedWarning)
            while seen.qsize() < 2:
                with condition:
                    condition.notify()
        finish(*others)


def follow(event, cleared, ready, turns):
    ready.release()
    for _ in range(turns):
        assert event.wait(PATIENCE)
        assert cleared.wait(PATIENCE)


def test_nobody_misses_an_event_when_another_one_waiting_is_killed():
    for current in soak.rounds("killed waiter for an event", 200):
        event, cleared, ready = fiber.Event(), fiber.Event(), fiber.Semaphore(0)
        victim = start(follow, event, cleared, ready, FOR_EVER)
        other = start(follow, event, cleared, ready, TURNS)
        all_ready(ready, 2)
        with killed_meanwhile(victim, current.rng):
            while other.is_alive():
                cleared.clear()
                event.set()
                event.clear()
                cleared.set()
        finish(other)


def meet_for_ever(barrier, ready, ended):
    ready.release()
    try:
        while True:
            barrier.wait()
    except threading.BrokenBarrierError:
        ended.release()


def test_a_barrier_breaks_for_all_when_a_party_is_killed():
    for current in soak.rounds("killed party of a barrier", 200):
        barrier, ready, ended = fiber.Barrier(4), fiber.Semaphore(0), fiber.Semaphore(0)
        children = [start(meet_for_ever, barrier, ready, ended) for _ in range(3)]
        all_ready(ready, 3)
        victim = current.rng.choice(children)
        with killed_meanwhile(victim, current.rng), pytest.raises(threading.BrokenBarrierError):
            while True:
                barrier.wait(PATIENCE)
        all_ready(ended, 2)
        finish(*(child for child in children if child is not victim))


def own(results):
    results.put(
        (fiber.Lock(), fiber.Semaphore(0), fiber.Condition(), fiber.Event(), fiber.Barrier(9))
    )
    threading.Event().wait()


def test_whoever_waits_is_told_when_the_owner_is_killed():
    for current in soak.rounds("killed owner", 200):
        results = fiber.SimpleQueue()
        victim = start(own, results)
        lock, semaphore, condition, event, barrier = results.get()
        lock.acquire()

        def sleep(condition=condition):
            with condition:
                condition.wait()

        waits = (lock.acquire, semaphore.acquire, sleep, event.wait, barrier.wait)
        with ThreadPoolExecutor(len(waits)) as threads:
            with killed_meanwhile(victim, current.rng):
                ends = [threads.submit(wait) for wait in waits]
            told = [one.exception(PATIENCE) for one in ends]
        assert [isinstance(one, PeerLostError) for one in told] == [True] * len(waits)
        with pytest.raises(LeaseLostError):
            lock.release()
