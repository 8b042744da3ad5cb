"""Executor: what the documentation of concurrent.futures promises, and what Fiber adds."""

import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from unittest.mock import Mock

import pytest

import fiber
import process_signals
from fiber.exceptions import ForkedError, StartError, WorkerCrashedError
from fiber.executor import BrokenExecutor, Executor
from pool_tasks import (
    count_up,
    die_at,
    executions,
    fail_at,
    keep,
    kept,
    nap,
    nap_and_tell,
    note,
    pid,
    refuse_to_start,
    same,
    square,
)
from waiting import PATIENCE, until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def keywords(*args, **kwargs):
    return args, kwargs


def adding(offset):
    return lambda x: x + offset


def raise_error(kind, *args):
    raise kind(*args)


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


@pytest.fixture
def ending():
    """An executor that the test ends."""
    with Executor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def executor(shared_runtime):
    """An executor for tests that end no worker, with all its workers and threads up."""
    with Executor(2) as executor:
        called = threading.Event()
        executor.submit(square, 1).add_done_callback(lambda _: called.set())
        assert called.wait(60)
        until(lambda: len(set(executor.map(nap_and_tell, [0.02] * 9))) == 2)
        yield executor


@pytest.fixture
def gate(tmp_path):
    """A file that tasks wait for."""
    path = tmp_path / "gate"
    yield path
    path.touch()


class TestSubmit:
    @pytest.mark.parametrize(
        "function,arguments,options,expected",
        [
            (keywords, (1,), {"fn": 2, "self": 3}, ((1,), {"fn": 2, "self": 3})),
            (functools.partial(keywords, 1, a=2), (3,), {"b": 4}, ((1, 3), {"a": 2, "b": 4})),
            (adding(10), (1,), {}, 11),
            ("-".join, (["a", "b"],), {}, "a-b"),
            (complex, (1, 2), {}, 1 + 2j),
        ],
        ids=["keywords", "a partial", "a closure", "a method", "a class"],
    )
    def test_the_result_is_that_of_the_call(self, executor, function, arguments, options, expected):
        assert executor.submit(function, *arguments, **options).result(PATIENCE) == expected

    def test_what_cannot_be_pickled_is_an_error_of_its_future_alone(self, executor):
        bad = executor.submit(same, (i for i in range(3)))
        frame = sys._getframe()
        worse = executor.submit(lambda: frame)
        good = executor.submit(square, 3)
        for future in (bad, worse):
            with pytest.raises(TypeError, match="pickle"):
                future.result(PATIENCE)
        assert good.result(PATIENCE) == 9

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_what_is_no_exception_but_a_task_raises_is_its_error_and_ends_no_worker(self, error):
        with Executor(1) as executor:
            worker = executor.submit(pid).result(PATIENCE)
            future = executor.submit(raise_error, error, 3)
            assert isinstance(future.exception(PATIENCE), error)
            assert future.exception().args == (3,)
            with pytest.raises(error):
                list(executor.map(raise_error, [error], [3]))
            assert executor.submit(pid).result(PATIENCE) == worker

    def test_many_tasks_of_many_functions_and_threads_come_back_each_to_its_future(self, executor):
        def work(function):
            futures = [executor.submit(function, x) for x in range(1000)]
            return [future.result(PATIENCE) for future in futures]

        functions = [abs, hex, str, square]
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            results = list(threads.map(work, functions))
        assert results == [list(map(function, range(1000))) for function in functions]

    def test_a_callback_may_submit_wait_and_shut_down(self):
        executor, seen = Executor(1), []
        before = set(fiber.active_children())

        def go_on(future):
            seen.append(executor.submit(square, future.result()).result(PATIENCE))
            executor.shutdown()

        executor.submit(square, 3).add_done_callback(go_on)
        until(lambda: seen and set(fiber.active_children()) <= before)
        assert seen == [81]


class TestEnd:
    @pytest.mark.parametrize("waits", [True, False])
    def test_a_shutdown_lets_the_rest_be_done_and_takes_nothing_afterwards(self, waits):
        executor = Executor(2)
        futures = [executor.submit(nap, 0.05) for _ in range(8)]
        results = executor.map(square, range(20))
        executor.shutdown(wait=waits)
        if waits:
            assert all(future.done() for future in futures)
        for use in (executor.submit, executor.map):
            with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
                use(square, [3])
        executor.shutdown()
        assert [future.result(PATIENCE) for future in futures] == [0.05] * 8
        assert list(results) == [x * x for x in range(20)]

    def test_one_that_was_never_used_starts_and_ends_nothing(self):
        before = set(fiber.active_children())
        with Executor(2):
            assert set(fiber.active_children()) == before

    def test_shutdown_can_cancel_what_waits(self, ending, gate):
        running = [ending.submit(wait_for, str(gate)) for _ in range(2)]
        until(lambda: all(future.running() for future in running))
        # a worker may hold one more entry
        futures = [ending.submit(square, x) for x in range(50)]
        results = ending.map(square, range(50))
        ending.shutdown(wait=False, cancel_futures=True)
        assert [future.cancelled() for future in futures[2:]] == [True] * 48
        gate.touch()
        ending.shutdown()
        assert all(future.done() for future in [*running, *futures])
        with pytest.raises(CancelledError):
            list(results)

    @pytest.mark.parametrize("how", ["terminate_workers", "kill_workers"])
    def test_the_workers_can_be_ended_at_once(self, gate, how):
        executor = Executor(1)
        running, waiting = (executor.submit(wait_for, str(gate)) for _ in range(2))
        results = executor.map(square, [1])
        getattr(executor, how)()
        for future in (running, waiting):
            assert isinstance(future.exception(PATIENCE), BrokenProcessPool)
        with pytest.raises(BrokenProcessPool):
            next(results)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(square, 3)

    def test_it_cannot_be_pickled(self, ending):
        with pytest.raises(TypeError, match="cannot be passed between processes"):
            ending.submit(same, ending).result(PATIENCE)


class TestWorkers:
    @pytest.mark.parametrize(
        "call,options,error,text",
        [
            (Executor, {"max_workers": 0}, ValueError, "max_workers must be greater than 0"),
            (Executor, {"max_workers": -1}, ValueError, "max_workers must be greater than 0"),
            (Executor, {"max_tasks_per_child": 0}, ValueError, "max_tasks_per_child must be >= 1"),
            (Executor, {"max_tasks_per_child": 1.5}, TypeError, "must be an integer"),
            (Executor, {"initializer": 3}, TypeError, "initializer must be a callable"),
            (Executor.map, {"chunksize": 0}, ValueError, "chunksize must be >= 1"),
            (Executor.map, {"buffersize": 0}, ValueError, "buffersize must be None or > 0"),
            (Executor.map, {"buffersize": 1.5}, TypeError, "must be an integer or None"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, executor, call, options, error, text):
        arguments = [] if call is Executor else [executor, square, [1]]
        with pytest.raises(error, match=text):
            call(*arguments, **options)

    def test_the_initializer_runs_first_and_a_context_of_the_standard_library_is_accepted(self):
        spawn = multiprocessing.get_context("spawn")
        with Executor(2, spawn, initializer=keep, initargs=(5,)) as executor:
            assert executor.submit(kept).result(PATIENCE) == [5]

    def test_a_worker_does_so_many_tasks_and_is_replaced(self):
        with Executor(1, max_tasks_per_child=2) as executor:
            futures = [executor.submit(count_up) for _ in range(5)]
            assert [future.result(PATIENCE) for future in futures] == [1, 2, 1, 2, 1]

    def test_a_failing_initializer_breaks_it_and_the_cause_tells_why(self):
        with Executor(1, initializer=refuse_to_start) as executor:
            future = executor.submit(square, 3)
            error = future.exception(PATIENCE)
            assert isinstance(error, BrokenProcessPool)
            assert isinstance(error.__cause__, StartError)
            for use in (
                lambda: executor.submit(square, 3),
                lambda: executor.submit(lambda: 3),
                lambda: executor.map(square, range(3)),
            ):
                with pytest.raises(BrokenExecutor, match="initializer on purpose"):
                    use()


class TestDeath:
    def test_killed_workers_lose_none_of_many_tasks(self, ending):
        futures = []
        for _ in range(3):
            found = ending.submit(pid)
            # behind it, in their order
            futures += [ending.submit(nap, 0.002) for _ in range(200)]
            number = found.result(PATIENCE)
            victim = next(one for one in fiber.active_children() if one.pid == number)
            process_signals.kill(victim)
            # what it answers until then would name it again
            victim.join(PATIENCE)
        assert [future.result(PATIENCE) for future in futures] == [0.002] * 600

    def test_a_task_that_always_kills_its_worker_fails_alone(self, ending):
        futures = [ending.submit(die_at, n, 5) for n in range(10)]
        with pytest.raises(WorkerCrashedError, match="given up") as caught:
            futures[5].result(PATIENCE)
        assert len(caught.value.attempts) == 3
        assert [f.result(PATIENCE) for n, f in enumerate(futures) if n != 5] == [
            n for n in range(10) if n != 5
        ]
        assert ending.submit(square, 3).result(PATIENCE) == 9


class TestFork:
    def test_a_fork_of_the_users_own_gets_an_error_and_its_end_ends_nothing(self, ending):
        assert ending.submit(square, 3).result(PATIENCE) == 9
        child, code = os.fork(), 1
        if not child:
            try:
                ending.submit(square, 3)
            except ForkedError:
                ending.shutdown()
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ending.submit(square, 4).result(PATIENCE) == 16


class Drawn:
    """An iterable that knows how far it was drawn."""

    def __init__(self, stop=10**9):
        self.count = 0
        self._stop = stop

    def __iter__(self):
        while self.count < self._stop:
            self.count += 1
            yield self.count - 1


def note_or_fail(path, number):
    if not number:
        raise ValueError("on purpose")
    nap(0.02)
    return note(path, number)


class TestMap:
    @pytest.mark.parametrize("chunksize", [1, 3, 1000])
    def test_results_come_in_order_and_items_of_a_chunk_stay_together(self, executor, chunksize):
        found = list(executor.map(lambda x: (x * x, os.getpid()), range(100), chunksize=chunksize))
        assert [value for value, _ in found] == [x * x for x in range(100)]
        for start in range(0, 100, chunksize):
            assert len({worker for _, worker in found[start : start + chunksize]}) == 1

    def test_iterables_go_side_by_side_to_the_end_of_the_shortest(self, executor):
        assert list(executor.map(pow, [2, 3, 4], itertools.count(1))) == [2, 9, 64]
        assert list(executor.map(square, [])) == []
        drawn = Drawn(3)
        results = executor.map(adding(10), drawn)
        # all at once
        assert drawn.count == 3
        assert list(results) == [10, 11, 12]

    @pytest.mark.parametrize(
        "bad,error,text", [(0, ValueError, "bad 0"), (threading.Lock(), TypeError, "pickle")]
    )
    def test_an_error_is_raised_where_its_result_would_be(self, executor, bad, error, text):
        results = executor.map(fail_at, [1, 2, bad, 4], [0] * 4)
        assert [next(results), next(results)] == [1, 2]
        with pytest.raises(error, match=text):
            next(results)
        with pytest.raises(StopIteration):
            next(results)

    @pytest.mark.parametrize("end", ["an exception", "close"])
    def test_after_its_end_what_was_not_sent_does_not_run(self, ending, tmp_path, end):
        told = tmp_path / "told"
        numbers = range(400) if end == "an exception" else range(1, 401)
        results = ending.map(note_or_fail, [str(told)] * 400, numbers)
        if end == "close":
            assert next(results) == 1
            results.close()
        else:
            with pytest.raises(ValueError, match="on purpose"):
                next(results)
        ending.shutdown()
        assert len(executions(told)) < 400

    def test_a_timeout_counts_from_the_call(self, ending, monkeypatch):
        deadline = Mock(left=100.0)
        made = Mock(return_value=deadline)
        monkeypatch.setattr("fiber.executor.Deadline", made)
        results = ending.map(nap, [0, 60], timeout=100)
        made.assert_called_once_with(100)
        deadline.left = 50.0
        assert next(results) == 0
        deadline.left = 0.0
        with pytest.raises(concurrent.futures.TimeoutError):
            next(results)
        ending.kill_workers()


class TestBufferSize:
    def test_no_more_is_drawn_than_the_buffer_holds(self, executor):
        drawn = Drawn()
        results = executor.map(square, drawn, buffersize=5)
        assert drawn.count == 5
        assert next(results) == 0
        assert drawn.count == 6
        assert [next(results) for _ in range(20)] == [x * x for x in range(1, 21)]
        assert drawn.count == 26

    def test_the_end_comes_as_without_it(self, executor):
        for count in (0, 1, 4, 5, 6, 20):
            results = executor.map(square, range(count), buffersize=5)
            assert list(results) == [x * x for x in range(count)]

    def test_it_counts_chunks(self, executor):
        drawn = Drawn(40)
        results = executor.map(square, drawn, buffersize=2, chunksize=3)
        assert drawn.count == 6
        assert [next(results) for _ in range(30)] == [x * x for x in range(30)]
        assert drawn.count <= 39
        assert list(results) == [x * x for x in range(30, 40)]

    def test_an_iterable_that_raises_ends_it(self, executor):
        def numbers():
            yield 1
            yield 2
            raise KeyError("the iterable")

        results = executor.map(square, numbers(), buffersize=1)
        with pytest.raises(KeyError, match="the iterable"):
            list(results)

    def test_after_a_shutdown_which_it_does_not_hold_up_nothing_is_drawn_any_more(self, ending):
        results = ending.map(square, Drawn(), buffersize=3)
        never_asked = ending.map(square, Drawn(), buffersize=3)
        assert next(results) == 0
        ending.shutdown()
        for rest in (results, never_asked):
            with pytest.raises(RuntimeError, match="after shutdown"):
                list(rest)

    def test_without_its_executor_it_yields_what_was_drawn(self):
        executor = Executor(1)
        results = executor.map(square, Drawn(), buffersize=3)
        del executor
        assert list(results) == [0, 1, 4]
