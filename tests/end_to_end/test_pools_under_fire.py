"""Pools whose workers die, stall, come and go; each execution is counted in a file."""

import collections
import contextlib
import functools
import json
import os
import random
import signal
import sys
import time

import psutil
import pytest

import fiber
import pool_tasks as tasks
from distributions import Answers
from fiber._plugins import manager
from fiber._runtime import runtime
from fiber.exceptions import WorkerCrashedError
from fiber.hookspecs import hookimpl
from fiber.testing.fakes import FakeProvider
from running import Program
from waiting import until


def workers(pool):
    return [process.pid for process in pool._pool if process.is_alive()]


def kill_one(pool, rng):
    """Kill one of the workers that are there, if any is."""
    alive = workers(pool)
    if alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(alive), signal.SIGKILL)


class TestAStuckTask:
    def test_what_waits_behind_it_is_done_by_others_soon(self, tmp_path):
        path, gate = tmp_path / "ran", tmp_path / "gate"
        os.mkfifo(gate)

        def work(n):
            tasks.note(str(path), n)
            if n == 700:
                # stuck until all others are there, at a time when entries have many items
                gate.read_bytes()
            time.sleep(0.0003)
            return n

        with fiber.Pool(3) as pool:
            pool.map(tasks.nap, [0.1] * 3)
            seen = pool.imap_unordered(work, range(1500))
            others = [next(seen) for _ in range(1499)]
            assert set(others) == set(range(1500)) - {700}
            gate.write_bytes(b"")
            assert list(seen) == [700]
        assert set(tasks.executions(path)) == set(range(1500))

    def test_at_most_once_nothing_runs_twice_to_save_time(self, tmp_path):
        path = tmp_path / "ran"
        work = functools.partial(tasks.note_and_nap, str(path))
        items = [(n, 1.0 if n == 0 else 0.001) for n in range(100)]
        with fiber.Pool(3, error_handling=False) as pool:
            assert pool.starmap(work, items) == list(range(100))
        assert sorted(tasks.executions(path)) == list(range(100))


class TestAtMostOnce:
    @pytest.mark.parametrize("chunksize", [1, 7])
    def test_whatever_dies_no_execution_is_repeated(self, tmp_path, chunksize):
        path = tmp_path / "ran"
        work = functools.partial(tasks.note_and_nap, str(path), seconds=0.002)
        rng = random.Random(5)
        with fiber.Pool(3, error_handling=False) as pool:
            pool.map(tasks.nap, [0.05] * 3)
            result = pool.map_async(work, range(600), chunksize)
            for _ in range(5):
                time.sleep(rng.uniform(0.02, 0.1))
                kill_one(pool, rng)
            with pytest.raises(WorkerCrashedError, match="must not run twice") as caught:
                result.get(60)
        counted = collections.Counter(tasks.executions(path))
        assert set(counted.values()) == {1}
        results = caught.value.results
        failed = [n for n, r in enumerate(results) if isinstance(r, WorkerCrashedError)]
        assert 1 <= len(failed) <= 5 * chunksize
        # what did not fail has its result and ran
        assert all(results[n] == n and n in counted for n in range(600) if n not in failed)


class TestPoison:
    @pytest.mark.parametrize("chunksize", [None, 4])
    def test_innocents_in_its_batch_are_computed_and_come_once(self, tmp_path, chunksize):
        path = tmp_path / "ran"
        work = functools.partial(tasks.note_and_die, str(path), bad=333)
        with fiber.Pool(2) as pool:
            # so that entries have many items
            pool.map(work, range(1000, 3000), chunksize)
            results = pool.imap_unordered(work, range(600), chunksize or 1)
            good, crashes = [], []
            while True:
                try:
                    good.append(next(results))
                except StopIteration:
                    break
                except WorkerCrashedError as error:
                    crashes.append(error)
        together = set(range(332, 336)) if chunksize else {333}
        assert sorted(good) == sorted(set(range(600)) - together)
        assert len(crashes) == len(together)
        assert all(len(error.attempts) == 3 for error in crashes)
        # alone three times; before in a batch, and in a copy of that where the death was seen so late
        # that the dead worker should have answered meanwhile
        assert collections.Counter(tasks.executions(path))[333] <= 3 + 2


class TestWorkers:
    @pytest.mark.parametrize("chunksize", [1, 5])
    def test_no_worker_does_more_chunks_than_it_may_also_when_some_are_killed(self, chunksize):
        rng = random.Random(3)
        # while workers start slowly, all that die may have had the same task
        with fiber.Pool(3, maxtasksperchild=4, max_attempts=5) as pool:
            result = pool.map_async(tasks.nap_and_tell, [0.004] * 200, chunksize)
            for _ in range(4):
                time.sleep(rng.uniform(0.05, 0.15))
                kill_one(pool, rng)
            done = collections.Counter(result.get(60))
        assert sum(done.values()) == 200
        assert max(done.values()) <= 4 * chunksize

    def test_when_one_of_a_job_dies_the_others_go_on_and_it_is_replaced(self):
        with fiber.Pool(3, processes_per_job=3) as pool:
            before = set(pool.map(tasks.nap_and_tell, [0.2] * 3, 1))
            assert len(before) == 3
            victim = before.pop()
            result = pool.map_async(tasks.nap_and_tell, [0.05] * 30)
            os.kill(victim, signal.SIGKILL)
            seen = set(result.get(60))
            assert before <= seen
            until(lambda: len(set(pool.map(tasks.nap_and_tell, [0.2] * 3, 1))) == 3)
            assert all(psutil.pid_exists(pid) for pid in before)

    def test_of_those_that_still_start_when_it_is_resized_none_too_many_stays(self):
        with fiber.Pool(2) as pool:
            pool.apply(tasks.pid)
            for size in (5, 1, 4, 2):
                pool.resize(size)
            until(lambda: len(workers(pool)) == 2)
            assert pool.size == 2

    def test_an_elastic_pool_grows_under_work_and_shrinks_when_idle(self):
        fiber.init(grow_after=0.1, shrink_after=0.3)
        try:
            with fiber.Pool(1, min=1, max=3) as pool:
                assert pool.size == 1
                result = pool.map_async(tasks.nap_and_tell, [0.1] * 60)
                assert len(set(result.get(60))) == 3
                until(lambda: len(workers(pool)) == 1)
                assert pool.apply(tasks.same, (1,)) == 1
            pool.join()
        finally:
            runtime.current().close()
            fiber.init()


@pytest.fixture
def install(monkeypatch):
    """Has runtimes load more plugins."""
    load = manager.load_plugins

    def more(*plugins):
        monkeypatch.setattr(
            "fiber._plugins.manager.load_plugins", lambda **k: load(extra=plugins, **k)
        )
        manager._installed.cache_clear()

    yield more
    manager._installed.cache_clear()


class TestNeeds:
    def test_a_function_gets_workers_of_its_own_and_nothing_leaks(self, install):
        install(Answers("fiber_resource_providers", [FakeProvider(count=2)]))

        def visible(_=None):
            time.sleep(0.05)
            return os.environ.get("FAKE_VISIBLE_DEVICES")

        needy = fiber.meta(fake=1)(functools.partial(visible))
        with fiber.Pool(2) as pool:
            # nobody used the first workers, so they make room
            first = set(workers(pool))
            seen = set(pool.map(needy, range(8), 1))
            assert seen <= {"F-0", "F-1"}
            assert None not in seen
            until(lambda: not first & set(workers(pool)))
            assert pool.map(visible, range(4), 1) == [None] * 4
            assert set(pool.map(needy, range(4), 1)) <= {"F-0", "F-1"}
        pool.join()
        with fiber.Pool(1) as other:
            assert other.map(visible, range(2)) == [None, None]


class TestSilence:
    def test_a_master_that_was_stopped_for_long_judges_nobody(self, tmp_path):
        (tmp_path / "stopped_master.py").write_text(STOPPED_MASTER)
        with contextlib.closing(Program(tmp_path, "stopped_master.py", environ={})) as master:
            assert master.line() == "ready"
            # longer than the lease of a local worker
            master.process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            master.process.send_signal(signal.SIGCONT)
            master.tell("")
            told = json.loads(master.line())
            master.end()
        assert told["results"] == list(range(1200))
        assert told["workers"] == told["before"]


STOPPED_MASTER = """
import json, sys, time
import fiber

def work(n):
    time.sleep(0.01)
    return n

if __name__ == "__main__":
    with fiber.Pool(3) as pool:
        pool.map(work, range(30))
        before = sorted(process.pid for process in pool._pool)
        result = pool.map_async(work, range(1200))
        print("ready", flush=True)
        results = result.get(60)
        sys.stdin.readline()
        after = sorted(process.pid for process in pool._pool)
    pool.join()
    print(json.dumps({"results": results, "before": before, "workers": after}))
"""


class TestHooks:
    @pytest.fixture
    def told(self, install):
        told = {"lost": [], "jobs": collections.defaultdict(list)}

        class Watch:
            @hookimpl
            def fiber_worker_lost(self, worker, cause, requeued, abandoned):
                told["lost"].append((worker, str(cause), requeued, abandoned))

            @hookimpl
            def fiber_job_changed(self, job, previous, current):
                told["jobs"][job.name].append(current.state.value)

        class Leaves:
            @hookimpl
            def fiber_job_changed(self):
                sys.exit("a plugin on purpose")

        raises = Answers("fiber_worker_lost", RuntimeError("a plugin on purpose"))
        install(raises, Leaves(), Watch())
        return told

    def test_each_job_is_told_and_each_loss_with_its_cause_and_counts(self, told, tmp_path, caplog):
        path = tmp_path / "ran"
        work = functools.partial(tasks.note_and_die, str(path), bad=3)
        # those that leave as they should are no loss
        with fiber.Pool(2, maxtasksperchild=2) as pool:
            with pytest.raises(WorkerCrashedError):
                pool.map(work, range(6), 1)
            assert pool.map(tasks.same, range(10)) == list(range(10))
        pool.join()
        for states in told["jobs"].values():
            assert states[0] in ("pending", "running")
            until(lambda states=states: states[-1] in ("failed", "succeeded"))
            assert [states.count(state) for state in ("failed", "succeeded")].count(1) == 1
        causes = [cause for _, cause, _, _ in told["lost"]]
        assert set(causes) == {"SIGNAL(9)"}
        # three deaths alone; one with others beside it, and one of a worker that was slow to give
        # the item back, cost nothing
        assert len(causes) >= 3
        assert sum(abandoned for *_, abandoned in told["lost"]) == 1, told["lost"]
        assert sum(requeued for _, _, requeued, _ in told["lost"]) >= 2, told["lost"]
        assert len({worker for worker, *_ in told["lost"]}) == len(causes)
        assert "a plugin on purpose" in caplog.text
