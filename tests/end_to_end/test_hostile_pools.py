"""Pools in bad company: iterables, callbacks, results and exceptions that misbehave."""

import functools
import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import MaybeEncodingError

import psutil
import pytest

import fiber
import pool_tasks as tasks
from fiber.exceptions import TerminatedError, WorkerCrashedError
from waiting import until

pytestmark = pytest.mark.usefixtures("shared_runtime")


def feeders():
    return [thread for thread in threading.enumerate() if thread.name == "fiber-feeder"]


@pytest.fixture
def pool():
    with fiber.Pool(2) as pool:
        yield pool
    pool.join()


class TestResults:
    def test_one_that_ends_its_reader_ends_nobody(self, pool):
        with pytest.raises(MaybeEncodingError):
            pool.apply(tasks.Refuses, kwds={"exits": True})
        assert pool.apply(tasks.same, (1,)) == 1

    def test_an_argument_that_cannot_be_read_is_the_error_of_its_own_item(self, pool):
        pool.map(tasks.same, range(2000))
        items = [*range(100), tasks.Refuses(), *range(100)]
        results = pool.imap(tasks.same, items)
        got = [next(results) for _ in range(100)]
        with pytest.raises(ValueError, match="refuses to be read"):
            next(results)
        assert got == list(range(100))
        assert list(results) == list(range(100))


class TestIterables:
    @pytest.mark.parametrize(
        "item, count, most",
        [(b"", 500, 4096 + 128), (bytes(4 * 2**20), 80, 64 + 4)],
        ids=["many small items", "few large ones"],
    )
    def test_an_endless_one_is_drawn_a_bounded_number_ahead(self, pool, item, count, most):
        drawn = itertools.count()
        results = pool.imap(len, (item for _ in drawn))
        assert len([next(results) for _ in range(count)]) == count
        assert next(drawn) < count + most

    def test_the_next_item_may_depend_on_the_last_result_of_a_busy_pool(self, pool):
        big = pool.map_async(tasks.nap, [0.002] * 2000)
        asked, answers = threading.Semaphore(0), [1]

        def items():
            for _ in range(5):
                yield answers[-1]
                assert asked.acquire(timeout=30)

        for result in pool.imap(lambda x: 2 * x, items()):
            answers.append(result)
            asked.release()
        assert answers == [1, 2, 4, 8, 16, 32]
        assert not big.ready()

    def test_one_may_use_the_pool_itself(self, pool):
        def items():
            for number in range(5):
                yield pool.apply(tasks.same, (number,))

        assert list(pool.imap(tasks.same, items())) == [0, 1, 2, 3, 4]

    def test_one_that_waits_for_ever_or_is_left_does_not_keep_the_pool_from_ending(self):
        go_on = threading.Event()

        def items():
            yield 1
            go_on.wait(60)
            yield 2

        with fiber.Pool(2) as pool:
            left = pool.imap_unordered(tasks.same, itertools.count())
            next(left)
            del left
            results = pool.imap(tasks.same, items())
            assert next(results) == 1
        with pytest.raises(TerminatedError):
            next(results)
        go_on.set()
        until(lambda: not feeders())

    def test_results_that_nobody_takes_are_run_for_their_effects_and_kept(self, tmp_path):
        path = tmp_path / "ran"
        work = functools.partial(tasks.note, str(path))
        pool = fiber.Pool(2)
        pool.imap_unordered(work, range(500))
        until(lambda: len(set(tasks.executions(path))) == 500)
        results = pool.imap(work, range(500, 10_000))
        assert next(results) == 500
        pool.close()
        pool.join()
        assert list(results) == list(range(501, 10_000))
        # of a worker that a busy machine keeps from answering some run elsewhere as well
        assert set(tasks.executions(path)) == set(range(10_000))


class TestCallbacks:
    @pytest.mark.parametrize("method", ["close", "terminate"])
    def test_one_may_use_the_pool_and_end_it(self, method):
        pool, got, ended = fiber.Pool(2), [], threading.Event()

        def end(_):
            got.extend(pool.map(tasks.same, range(5)))
            getattr(pool, method)()
            pool.join()
            ended.set()

        pool.apply_async(tasks.same, (1,), callback=end)
        assert ended.wait(30)
        assert got == [0, 1, 2, 3, 4]
        pool.join()
        with pytest.raises(ValueError, match="not running"):
            pool.apply(tasks.same, (1,))


class TestEnding:
    def test_from_several_threads_at_once(self):
        pool = fiber.Pool(2)
        results = [pool.map_async(tasks.nap, [0.01] * 20) for _ in range(3)]

        def end(method):
            getattr(pool, method)()
            pool.join()

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(end, ["close", "terminate"] * 2)) == [None] * 4
        assert all(result.ready() for result in results)
        for end_again in (pool.terminate, pool.join, pool.close, pool.join):
            end_again()

    @pytest.mark.parametrize("method", ["close", "terminate"])
    def test_calls_of_other_threads_have_results_or_errors(self, method):
        pool, got = fiber.Pool(2), []
        # what was taken on is done unless it was terminated
        ends = ValueError if method == "close" else (ValueError, TerminatedError)

        def call():
            with pytest.raises(ends):
                while True:
                    got.append(pool.map(tasks.same, range(3)))

        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(call) for _ in range(4)]
            until(lambda: got)
            getattr(pool, method)()
            pool.join()
        assert [one.result() for one in calls] == [None] * 4
        assert got == [[0, 1, 2]] * len(got)

    @pytest.mark.filterwarnings("ignore:unclosed running:ResourceWarning")
    def test_a_pool_lives_as_long_as_a_result_is_awaited(self):
        assert fiber.Pool(1).map_async(tasks.same, range(5)).get(30) == [0, 1, 2, 3, 4]
        assert list(fiber.Pool(1).imap(tasks.same, range(5))) == [0, 1, 2, 3, 4]

    def test_a_pool_that_was_forgotten_ends_by_itself_with_a_warning(self):
        pool = fiber.Pool(2)
        pool.map(tasks.same, range(10))
        workers = [process.pid for process in pool._pool]
        alive = weakref.ref(pool)
        with pytest.warns(ResourceWarning, match="unclosed running"):  # noqa: PT031 - one act
            del pool
            gc.collect()
        assert alive() is None
        until(lambda: not any(psutil.pid_exists(pid) for pid in workers))

    @pytest.mark.filterwarnings("ignore:unclosed running:ResourceWarning")
    def test_one_that_is_collected_on_the_handlers_thread_does_not_stop_it(self):
        done = threading.Event()
        fiber.Pool(1).apply_async(tasks.same, (1,), callback=lambda _: done.set())
        assert done.wait(30)
        until(lambda: not any(t.name.startswith("fiber-pool") for t in threading.enumerate()))
        with fiber.Pool(1) as pool:
            assert pool.apply(tasks.same, (2,)) == 2


class TestExceptions:
    @pytest.mark.parametrize(
        "task, argument, reason",
        [
            (tasks.raise_it, KeyboardInterrupt, "EXIT(1)"),
            (tasks.raise_it, GeneratorExit, "EXIT(1)"),
            (tasks.leave, 0, "EXIT(0)"),
            (tasks.leave, 7, "EXIT(7)"),
        ],
    )
    def test_what_ends_its_worker_is_told_in_the_end(self, pool, task, argument, reason):
        with pytest.raises(WorkerCrashedError) as caught:
            pool.apply(task, (argument,))
        attempts = caught.value.attempts
        assert [str(attempt.reason) for attempt in attempts] == [reason] * 3
        told = attempts[0].log_tail
        assert task is tasks.leave or "on purpose" in "\n".join(told)
        # none of fiber above the task
        frames = [line.split()[-1] for line in told if "File" in line]
        assert frames == ([] if task is tasks.leave else ["_bootstrap", "running", "raise_it"])
        assert pool.apply(tasks.same, (1,)) == 1

    def test_a_crash_in_a_pool_of_a_worker_reaches_the_top(self, pool):
        def inner(_):
            with fiber.Pool(1, max_attempts=1) as own:
                own.apply(tasks.leave, (3,))

        with pytest.raises(WorkerCrashedError) as caught:
            pool.apply(inner, (1,))
        assert len(caught.value.attempts) == 1
