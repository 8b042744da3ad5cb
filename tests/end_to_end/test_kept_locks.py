"""A process that keeps a lock of another host's process is killed at a random moment.

Between hosts is over TLS; a file that both map says whether the process was inside.
"""

import mmap
import threading
import warnings

import pytest

import fiber
import soak
from children import PATIENCE, finish, killed, killed_meanwhile, start
from fiber.exceptions import HolderDiedWarning
from waiting import until

pytestmark = pytest.mark.timeout(3600 if soak.is_full() else 120)


@pytest.fixture(autouse=True)
def _between_hosts(monkeypatch):
    monkeypatch.setenv("FIBER_LOCAL_TRANSPORT", "tls")


@pytest.fixture
def place(tmp_path):
    """A file of one byte."""
    path = tmp_path / "inside"
    path.write_bytes(b"\0")
    return path


def mapped(path):
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 1)


def use(lock, place, ready):
    inside = mapped(place)
    ready.release()
    while True:
        with lock:
            inside[0] = 1
            for _ in range(300):
                pass
            inside[0] = 0
        for _ in range(300):
            pass


def test_whoever_is_killed_inside_is_told_of(place):
    inside = mapped(place)
    for current in soak.rounds("killed keeper", 200, least=8):
        inside[0] = 0
        lock, ready = fiber.Lock(), fiber.Semaphore(0)
        victim = start(use, lock, place, ready)
        assert ready.acquire(timeout=PATIENCE)
        with killed_meanwhile(victim, current.rng):
            pass
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert lock.acquire(timeout=PATIENCE)
        assert [one.category for one in told] in ([], [HolderDiedWarning])
        assert told or not inside[0], "whoever was inside has died as the holder"
        current.note(inside=inside[0], told=len(told))


def own(locks):
    locks.put(fiber.Lock())
    threading.Event().wait()


def use_until_it_is_kept(lock, hold, ready):
    def is_kept():
        with lock:
            pass
        return lock._used._kept is not None

    until(is_kept)
    if hold:
        lock.acquire()
    ready.release()
    threading.Event().wait()


@pytest.mark.parametrize("owner", ["parent", "sibling"])
@pytest.mark.parametrize("hold", [True, False])
def test_a_death_beside_a_lock_is_not_that_of_a_holder_whoever_owns_it(owner, hold):
    locks, ready = fiber.SimpleQueue(), fiber.Semaphore(0)
    sibling = start(own, locks)
    lock = locks.get() if owner == "sibling" else fiber.Lock()
    victim = start(use_until_it_is_kept, lock, hold, ready)
    assert ready.acquire(timeout=PATIENCE)
    killed(victim)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert lock.acquire(timeout=PATIENCE)
    assert [one.category for one in told] == [HolderDiedWarning] * hold
    killed(sibling)


def count(value, times):
    for _ in range(times):
        with value.get_lock():
            value.value += 1


def test_several_that_keep_it_in_turns_lose_no_count():
    value, times = fiber.Value("q", 0), 100
    children = [start(count, value, times) for _ in range(2)]
    for _ in range(20):
        with value.get_lock():
            value.value += 1
    finish(*children)

    assert value.value == 2 * times + 20
