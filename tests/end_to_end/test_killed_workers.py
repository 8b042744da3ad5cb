"""Workers are killed and stopped at random while they work; nothing is lost, nothing hangs."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable

import pytest

import fiber
import process_signals
import soak
from short_work import work

ITEMS = 20_000
WORKERS = 4
# Each worker is hit 1.7 times a second here, so a task that is alone on its worker for a tenth of a
# second, which is long on a busy machine, loses it with a chance of 1/6. At most 2e5 tasks are ever
# alone in 1,000 hits; with 15 attempts the chance that an innocent one is given up is below 1e-6:
# 2e5 * (1/6)**15 = 4e-7.
ATTEMPTS = 15
WANT = [(n * 2654435761) % 2**32 for n in range(ITEMS)]


class Killer:
    """Sends a signal to random workers of a pool, one at a time, each once it was seen to work."""

    def __init__(self, pool, rng: random.Random, signum: int, wanted: int) -> None:
        self.pool, self.rng, self.signum, self.wanted = pool, rng, signum, wanted
        self.hit = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    @property
    def done(self) -> bool:
        return self.hit >= self.wanted

    def _run(self):
        # the pace is random, not waiting for anything: faults come when they come
        while not self.done and not self._stop.wait(self.rng.uniform(0.05, 0.25)):
            workers = [process for process in self.pool._pool if process.is_alive()]
            if workers:
                self.hit += self._send(self.rng.choice(workers))

    def _send(self, worker):
        try:
            process_signals.send(worker, self.signum)
        except ProcessLookupError:
            return False
        return True


def maps_right_under(signum: int, full: int, name: str, note: Callable[..., None]) -> None:
    """Map with chunk sizes 1, 7 and automatic until enough workers were hit; all results right."""
    wanted = soak.count(full, least=6)
    rng = random.Random(f"{name} {full}")
    maps = 0
    with fiber.Pool(WORKERS, max_attempts=ATTEMPTS) as pool:
        assert pool.map(work, range(100)) == WANT[:100]
        with Killer(pool, rng, signum, wanted) as killer:
            while not killer.done:
                for chunksize in (1, 7, None):
                    assert pool.map(work, range(ITEMS), chunksize) == WANT
                    seen = list(pool.imap_unordered(work, range(2000), chunksize or 1))
                    assert sorted(seen) == sorted(WANT[:2000]), "each exactly once"
                    maps += 1
        assert pool.map(work, range(100)) == WANT[:100]
    pool.join()
    note(signal=int(signum), hit=killer.hit, maps=maps)


@pytest.mark.any_backend
@pytest.mark.timeout(3600 if soak.is_full() else 120)
def test_nothing_is_lost_when_workers_are_killed(record_property):
    maps_right_under(signal.SIGKILL, 1000, "kill", lambda **f: record_property("soak", f))


@pytest.mark.any_backend
@pytest.mark.timeout(7200 if soak.is_full() else 120)
def test_nothing_is_lost_when_workers_are_stopped(record_property):
    maps_right_under(signal.SIGSTOP, 1000, "stop", lambda **f: record_property("soak", f))
