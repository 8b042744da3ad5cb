"""Workers are killed and stopped at random while they work; nothing is lost, nothing hangs."""

import contextlib
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import fiber
import pool_tasks as tasks
import process_signals
import soak

ITEMS = 20_000
WORKERS = 4
# Each worker is hit 1.7 times a second here, so a task that is alone on its worker for a tenth of a
# second, which is long on a busy machine, loses it with a chance of 1/6. At most 2e5 tasks are ever
# alone in 1,000 hits; with 15 attempts the chance that an innocent one is given up is below 1e-6:
# 2e5 * (1/6)**15 = 4e-7.
ATTEMPTS = 15
WANT = [(n * 2654435761) % 2**32 for n in range(ITEMS)]


class Killer(threading.Thread):
    """Sends a signal to random workers of a pool, one at a time, so often."""

    def __init__(self, pool, rng, signum, wanted):
        super().__init__(name="killer")
        self.pool, self.rng, self.signum, self.wanted = pool, rng, signum, wanted
        self.hit = 0
        self.over = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def run(self):
        # the pace is random, not waiting for anything: faults come when they come
        while self.hit < self.wanted and not self.over.wait(self.rng.uniform(0.05, 0.25)):
            workers = [process for process in self.pool._pool if process.is_alive()]
            with contextlib.suppress(IndexError, ProcessLookupError):
                process_signals.send(self.rng.choice(workers), self.signum)
                self.hit += 1


@pytest.mark.any_backend
@pytest.mark.timeout(7200 if soak.is_full() else 120)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_nothing_is_lost_when_workers_are(signum, record_property):
    """Maps with chunk sizes 1, 7 and automatic are right until enough workers were hit."""
    rng = random.Random(int(signum))
    with fiber.Pool(WORKERS, max_attempts=ATTEMPTS) as pool:
        assert pool.map(tasks.work, range(100)) == WANT[:100]
        with Killer(pool, rng, signum, soak.count(1000, least=6)) as killer:
            while killer.is_alive():
                for chunksize in (1, 7, None):
                    assert pool.map(tasks.work, range(ITEMS), chunksize) == WANT
                    seen = list(pool.imap_unordered(tasks.work, range(2000), chunksize or 1))
                    assert sorted(seen) == sorted(WANT[:2000]), "each exactly once"
        assert pool.map(tasks.work, range(100)) == WANT[:100]
    pool.join()
    record_property("soak", {"signal": int(signum), "hit": killer.hit})


def call_again_and_again(pool, rng, stop):
    """Maps, applies and streams of all kinds, which have the right results."""
    while not stop.is_set():
        want = list(range(rng.randint(1, 400)))
        chunksize = rng.choice([1, 5])
        calls = [
            lambda want=want, size=chunksize: pool.map(tasks.same, want, size),
            lambda want=want: pool.map(tasks.same, want),
            lambda want=want: pool.starmap(max, [(x, -1) for x in want]),
            lambda want=want, size=chunksize: list(pool.imap(tasks.same, want, size)),
            lambda want=want: sorted(pool.imap_unordered(tasks.same, want)),
            lambda want=want: pool.apply(tasks.same, (want,)),
        ]
        assert rng.choice(calls)() == want


def test_callers_on_many_threads_lose_nothing_while_workers_die_and_the_pool_is_resized():
    stop, rng = threading.Event(), random.Random(12)
    with fiber.Pool(3) as pool, ThreadPoolExecutor(4) as threads:
        callers = [
            threads.submit(call_again_and_again, pool, random.Random(seed), stop)
            for seed in range(4)
        ]
        with Killer(pool, random.Random(11), signal.SIGKILL, 8) as killer:
            while killer.is_alive():
                pool.resize(rng.randint(2, 4))
                killer.join(rng.uniform(0.1, 0.4))
        stop.set()
        assert [one.result(60) for one in callers] == [None] * 4
