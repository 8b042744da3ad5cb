"""Executor: what the documentation of concurrent.futures promises, and what Fiber adds."""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import itertools
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import CancelledError, InvalidStateError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import RemoteTraceback
from pathlib import Path

import pytest

import fiber
import process_signals
from fiber.exceptions import StartError, WorkerCrashedError
from fiber.executor import BrokenExecutor, Executor
from pool_tasks import (
    count_up,
    die_at,
    die_once,
    executions,
    fail_at,
    keep,
    kept,
    nap,
    nap_and_tell,
    note,
    note_and_nap,
    pid,
    refuse_to_start,
    same,
    square,
)
from waiting import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]

PATIENCE = 30


def keywords(*args, **kwargs):
    return args, kwargs


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


def use_an_executor(n):
    with Executor(1) as executor:
        return list(executor.map(square, range(n)))


@pytest.fixture
def executor():
    with Executor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def kept_executor(shared_runtime):
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


@pytest.fixture
def busy(executor, gate):
    """An executor whose workers are all busy until the gate opens."""
    futures = [executor.submit(wait_for, str(gate)) for _ in range(2)]
    until(lambda: all(future.running() for future in futures))
    # a worker may hold one more entry
    yield executor
    gate.touch()
    concurrent.futures.wait(futures)


class TestSubmit:
    @pytest.fixture
    def executor(self, kept_executor):
        return kept_executor

    def test_the_result_is_that_of_the_call(self, executor):
        assert executor.submit(keywords, 1, fn=2, self=3).result(PATIENCE) == (
            (1,),
            {"fn": 2, "self": 3},
        )

    def test_an_exception_is_raised_with_its_remote_traceback(self, executor):
        future = executor.submit(fail_at, 3, 3)
        with pytest.raises(ValueError, match="bad 3") as caught:
            future.result(PATIENCE)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "fail_at" in str(caught.value.__cause__)
        assert future.exception() is caught.value

    def test_closures_partials_methods_and_classes_are_called(self, executor):
        offset = 10
        assert executor.submit(lambda x: x + offset, 1).result(PATIENCE) == 11
        assert executor.submit(functools.partial(keywords, 1, a=2), 3, b=4).result(PATIENCE) == (
            (1, 3),
            {"a": 2, "b": 4},
        )
        assert executor.submit("-".join, ["a", "b"]).result(PATIENCE) == "a-b"
        assert executor.submit(complex, 1, 2).result(PATIENCE) == 1 + 2j

    def test_what_cannot_be_pickled_is_an_error_of_its_future_alone(self, executor):
        bad = executor.submit(same, (i for i in range(3)))
        frame = sys._getframe()
        worse = executor.submit(lambda: frame)
        good = executor.submit(square, 3)
        for future in (bad, worse):
            with pytest.raises(TypeError, match="pickle"):
                future.result(PATIENCE)
        assert good.result(PATIENCE) == 9

    def test_many_small_tasks_come_back_each_to_its_future(self, executor):
        futures = [executor.submit(square, x) for x in range(3000)]
        assert [future.result(PATIENCE) for future in futures] == [x * x for x in range(3000)]

    def test_threads_may_submit_at_once(self, executor):
        results = {}

        def work(n):
            futures = [executor.submit(square, x) for x in range(n)]
            results[n] = [future.result(PATIENCE) for future in futures]

        threads = [threading.Thread(target=work, args=(n,)) for n in (50, 100, 150)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {n: [x * x for x in range(n)] for n in (50, 100, 150)}

    def test_tasks_of_many_functions_keep_apart(self, executor):
        functions = [abs, hex, str, repr, float, square]
        futures = [(f, executor.submit(f, 7)) for f in functions * 3]
        assert all(future.result(PATIENCE) == function(7) for function, future in futures)


class TestCancel:
    def test_a_future_that_waits_is_cancelled_and_never_runs(self, busy, gate, tmp_path):
        noted = tmp_path / "told"
        futures = [busy.submit(note, str(noted), n) for n in range(20)]
        assert all(future.cancel() for future in futures[4:])
        assert all(future.cancelled() and future.done() for future in futures[4:])
        gate.touch()
        concurrent.futures.wait(futures, PATIENCE)
        assert {int(n) for n in noted.read_text().split()} <= {0, 1, 2, 3}

    def test_waiting_for_a_cancelled_future_ends_at_once(self, busy):
        future = busy.submit(square, 3)
        threading.Timer(0.1, future.cancel).start()
        assert concurrent.futures.wait([future], PATIENCE).done == {future}
        with pytest.raises(CancelledError):
            future.result(0)
        with pytest.raises(CancelledError):
            future.exception(0)

    def test_cancelling_twice_is_true_twice_and_calls_back_once(self, busy):
        called = []
        future = busy.submit(square, 3)
        future.add_done_callback(called.append)
        assert future.cancel()
        assert future.cancel()
        assert called == [future]

    def test_what_runs_or_is_done_cannot_be_cancelled(self, executor, gate):
        running = executor.submit(wait_for, str(gate))
        until(running.running)
        assert not running.cancel()
        gate.touch()
        assert running.result(PATIENCE) == "released"
        assert not running.cancel()
        assert not running.cancelled()

    def test_a_future_of_an_ended_task_takes_no_other_result(self, executor):
        future = executor.submit(square, 3)
        assert future.result(PATIENCE) == 9
        with pytest.raises(InvalidStateError):
            future.set_result(4)
        with pytest.raises(InvalidStateError):
            future.set_exception(ValueError())

    def test_one_whose_user_set_it_keeps_what_was_set(self, busy, gate):
        future, other = busy.submit(square, 3), busy.submit(square, 4)
        future.set_result("mine")
        gate.touch()
        assert other.result(PATIENCE) == 16
        assert future.result(0) == "mine"


class TestCallbacks:
    def test_they_are_called_in_order_and_one_that_raises_stops_none(self, busy, gate, caplog):
        called, last = [], threading.Event()

        def fail(future):
            called.append("second")
            raise ValueError("callback on purpose")

        future = busy.submit(square, 3)
        future.add_done_callback(lambda f: called.append(f.result()))
        future.add_done_callback(fail)
        future.add_done_callback(lambda _: last.set())
        gate.touch()
        assert last.wait(PATIENCE)
        assert called == [9, "second"]
        assert "callback on purpose" in caplog.text

    def test_one_added_late_is_called_at_once(self, executor):
        future = executor.submit(square, 3)
        future.result(PATIENCE)
        called = []
        future.add_done_callback(called.append)
        assert called == [future]

    def test_a_callback_may_submit_wait_and_shut_down(self):
        executor, seen = Executor(1), []
        before = set(fiber.active_children())

        def go_on(future):
            seen.append(executor.submit(square, future.result()).result(PATIENCE))
            executor.shutdown()

        executor.submit(square, 3).add_done_callback(go_on)
        until(lambda: seen and set(fiber.active_children()) <= before)
        assert seen == [81]


class TestWaiting:
    def test_results_have_timeouts(self, executor, gate):
        future = executor.submit(wait_for, str(gate))
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.05)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.exception(0.05)

    def test_wait_returns_with_the_first_the_first_failed_or_all(self, executor, gate):
        late = executor.submit(wait_for, str(gate))
        early, bad = executor.submit(square, 3), executor.submit(fail_at, 1, 1)
        first = concurrent.futures.wait(
            [late, early], PATIENCE, return_when=concurrent.futures.FIRST_COMPLETED
        )
        assert first.done == {early}
        failed = concurrent.futures.wait(
            [late, bad], PATIENCE, return_when=concurrent.futures.FIRST_EXCEPTION
        )
        assert failed.not_done == {late}
        gate.touch()
        assert concurrent.futures.wait([late, early, bad], PATIENCE).not_done == set()

    def test_as_completed_yields_each_once_as_it_comes(self, executor, gate):
        late, early = executor.submit(wait_for, str(gate)), executor.submit(square, 3)
        order = []
        for future in concurrent.futures.as_completed([late, early], PATIENCE):
            order.append(future)
            gate.touch()
        assert order == [early, late]


class TestEnd:
    def test_shutdown_waits_for_what_there_is(self):
        executor = Executor(2)
        futures = [executor.submit(nap, 0.05) for _ in range(8)]
        executor.shutdown()
        assert all(future.done() and not future.cancelled() for future in futures)

    def test_nothing_is_taken_afterwards(self, executor):
        executor.shutdown()
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            executor.submit(square, 3)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.map(square, [1])
        executor.shutdown()

    def test_one_that_was_never_used_starts_and_ends_nothing(self):
        before = set(fiber.active_children())
        with Executor(2):
            assert set(fiber.active_children()) == before

    def test_shutdown_without_waiting_lets_the_rest_be_done(self):
        executor = Executor(1)
        futures = [executor.submit(nap, 0.02) for _ in range(5)]
        executor.shutdown(wait=False)
        assert [future.result(PATIENCE) for future in futures] == [0.02] * 5

    def test_shutdown_can_cancel_what_waits(self, busy, gate):
        futures = [busy.submit(square, x) for x in range(50)]
        threading.Timer(0.1, gate.touch).start()
        busy.shutdown(cancel_futures=True)
        assert all(future.done() for future in futures)
        assert [future.cancelled() for future in futures[2:]] == [True] * 48

    def test_futures_outlive_their_executor(self):
        executor = Executor(1)
        future = executor.submit(nap, 0.1)
        del executor
        gc.collect()
        assert future.result(PATIENCE) == 0.1

    @pytest.mark.parametrize("how", ["terminate_workers", "kill_workers"])
    def test_the_workers_can_be_ended_at_once(self, gate, how):
        executor = Executor(1)
        running, waiting = (executor.submit(wait_for, str(gate)) for _ in range(2))
        getattr(executor, how)()
        for future in (running, waiting):
            assert isinstance(future.exception(PATIENCE), BrokenProcessPool)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(square, 3)

    def test_it_cannot_be_pickled(self, executor):
        with pytest.raises(TypeError, match="cannot be passed between processes"):
            executor.submit(same, executor).result(PATIENCE)


class TestWorkers:
    def test_a_worker_may_have_an_executor_of_its_own(self, executor):
        assert executor.submit(use_an_executor, 4).result(PATIENCE) == [0, 1, 4, 9]

    @pytest.mark.parametrize(
        "options,error,text",
        [
            ({"max_workers": 0}, ValueError, "max_workers must be greater than 0"),
            ({"max_workers": -1}, ValueError, "max_workers must be greater than 0"),
            ({"max_tasks_per_child": 0}, ValueError, "max_tasks_per_child must be >= 1"),
            ({"max_tasks_per_child": 1.5}, TypeError, "must be an integer"),
            ({"initializer": 3}, TypeError, "initializer must be a callable"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, options, error, text):
        with pytest.raises(error, match=text):
            Executor(**options)

    def test_the_default_is_one_worker_a_cpu(self):
        with Executor() as executor:
            assert executor._max_workers == fiber.cpu_count()

    def test_the_initializer_runs_first_in_each(self):
        with Executor(2, initializer=keep, initargs=(5,)) as executor:
            assert executor.submit(kept).result(PATIENCE) == [5]

    def test_a_worker_does_so_many_tasks_and_is_replaced(self):
        with Executor(1, max_tasks_per_child=2) as executor:
            futures = [executor.submit(count_up) for _ in range(5)]
            assert [future.result(PATIENCE) for future in futures] == [1, 2, 1, 2, 1]

    def test_a_context_of_the_standard_library_is_accepted(self):
        with Executor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
            assert executor.submit(square, 3).result(PATIENCE) == 9

    def test_a_failing_initializer_breaks_it_and_the_cause_tells_why(self):
        with Executor(1, initializer=refuse_to_start) as executor:
            future = executor.submit(square, 3)
            error = future.exception(PATIENCE)
            assert isinstance(error, BrokenProcessPool)
            assert isinstance(error.__cause__, StartError)
            assert "initializer on purpose" in str(error)
            with pytest.raises(BrokenExecutor, match="initializer on purpose"):
                executor.submit(square, 3)
            with pytest.raises(BrokenExecutor, match="initializer on purpose"):
                executor.submit(lambda: 3)


class TestDeath:
    def test_a_task_whose_worker_was_killed_runs_again(self, executor, tmp_path):
        futures = [executor.submit(die_once, str(tmp_path / str(n))) for n in range(3)]
        assert [future.result(PATIENCE) for future in futures] == ["survived"] * 3

    def test_killed_workers_lose_none_of_many_tasks(self, executor):
        spared = set(fiber.active_children())
        futures = [executor.submit(nap, 0.002) for _ in range(500)]
        for _ in range(3):
            executor.submit(pid).result(PATIENCE)
            victim = next(one for one in fiber.active_children() if one not in spared)
            process_signals.kill(victim)
            spared.add(victim)
        assert [future.result(PATIENCE) for future in futures] == [0.002] * 500

    def test_a_task_that_always_kills_its_worker_fails_alone(self, executor):
        futures = [executor.submit(die_at, n, 5) for n in range(10)]
        with pytest.raises(WorkerCrashedError, match="given up") as caught:
            futures[5].result(PATIENCE)
        assert len(caught.value.attempts) == 3
        assert [f.result(PATIENCE) for n, f in enumerate(futures) if n != 5] == [
            n for n in range(10) if n != 5
        ]
        assert executor.submit(square, 3).result(PATIENCE) == 9


class TestFork:
    def test_a_fork_of_the_users_own_gets_an_error_and_its_end_ends_nothing(self, executor):
        assert executor.submit(square, 3).result(PATIENCE) == 9
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                executor.submit(square, 3)
            except BaseException as error:
                os.write(writing, type(error).__name__.encode())
                executor.shutdown()
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with open(reading) as noted:
            assert noted.read() == "ForkedError"
        assert executor.submit(square, 4).result(PATIENCE) == 16


@pytest.fixture
def ending():
    """An executor that the test ends."""
    with Executor(2) as executor:
        yield executor


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
    @pytest.fixture
    def executor(self, kept_executor):
        return kept_executor

    @pytest.mark.parametrize("chunksize", [1, 3, 1000])
    def test_results_come_in_order(self, executor, chunksize):
        assert list(executor.map(square, range(100), chunksize=chunksize)) == [
            x * x for x in range(100)
        ]

    def test_iterables_go_side_by_side_to_the_end_of_the_shortest(self, executor):
        assert list(executor.map(pow, [2, 3, 4], itertools.count(1))) == [2, 9, 64]
        assert list(executor.map(square, [])) == []

    def test_items_of_a_chunk_stay_together(self, executor):
        workers = list(executor.map(pid, range(40), chunksize=10))
        assert all(len(set(workers[start : start + 10])) == 1 for start in range(0, 40, 10))

    def test_iterables_are_drawn_at_once(self, executor):
        drawn = Drawn(50)
        executor.map(square, drawn)
        assert drawn.count == 50

    def test_closures_are_called(self, executor):
        offset = 10
        assert list(executor.map(lambda x: x + offset, range(3))) == [10, 11, 12]

    def test_an_exception_is_raised_where_its_result_would_be(self, executor):
        results = executor.map(fail_at, range(5), [3] * 5)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="bad 3"):
            next(results)
        with pytest.raises(StopIteration):
            next(results)

    def test_after_an_exception_what_was_not_sent_does_not_run(self, ending, tmp_path):
        told = tmp_path / "told"
        results = ending.map(note_or_fail, [str(told)] * 400, range(400))
        with pytest.raises(ValueError, match="on purpose"):
            list(results)
        ending.shutdown()
        assert len(executions(told)) < 400

    def test_one_that_is_left_cancels_what_was_not_sent(self, ending, tmp_path):
        told = tmp_path / "told"
        results = ending.map(note_and_nap, [str(told)] * 400, range(400), [0.02] * 400)
        assert next(results) == 0
        results.close()
        ending.shutdown()
        assert len(executions(told)) < 400

    def test_a_timeout_counts_from_the_call(self, ending):
        # a worker is there, however long that takes
        assert ending.submit(nap, 0).result() == 0
        results = ending.map(nap, [0, 60], timeout=0.5)
        assert next(results) == 0
        with pytest.raises(concurrent.futures.TimeoutError):
            next(results)
        ending.kill_workers()

    def test_what_does_not_pickle_is_an_error_in_its_place(self, executor):
        results = executor.map(square, [2, (i for i in range(3))])
        assert next(results) == 4
        with pytest.raises(TypeError, match="pickle"):
            next(results)

    def test_bad_numbers_are_refused(self, executor):
        with pytest.raises(ValueError, match="chunksize must be >= 1"):
            executor.map(square, [1], chunksize=0)
        with pytest.raises(ValueError, match="buffersize must be None or > 0"):
            executor.map(square, [1], buffersize=0)
        with pytest.raises(TypeError, match="buffersize must be an integer or None"):
            executor.map(square, [1], buffersize=1.5)

    def test_shutdown_may_cancel_what_waits(self, ending):
        results = ending.map(nap, [0.1] * 100)
        ending.shutdown(cancel_futures=True)
        with pytest.raises(CancelledError):
            list(results)

    def test_results_outlive_the_shutdown(self, ending):
        results = ending.map(square, range(20))
        ending.shutdown()
        assert list(results) == [x * x for x in range(20)]

    def test_without_workers_it_is_broken(self):
        with Executor(1, initializer=refuse_to_start) as executor:
            results = executor.map(square, range(3))
            with pytest.raises(BrokenExecutor, match="initializer on purpose"):
                next(results)
            with pytest.raises(BrokenExecutor, match="initializer on purpose"):
                executor.map(square, range(3))


class TestBufferSize:
    @pytest.fixture
    def executor(self, kept_executor):
        return kept_executor

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
        drawn = Drawn()
        results = executor.map(square, drawn, buffersize=2, chunksize=3)
        assert drawn.count == 6
        assert [next(results) for _ in range(30)] == [x * x for x in range(30)]
        assert drawn.count <= 39
        assert list(executor.map(square, range(10), buffersize=2, chunksize=3)) == [
            x * x for x in range(10)
        ]

    def test_an_iterable_that_raises_ends_it(self, executor):
        def numbers():
            yield 1
            yield 2
            raise KeyError("the iterable")

        results = executor.map(square, numbers(), buffersize=1)
        with pytest.raises(KeyError, match="the iterable"):
            list(results)

    def test_after_a_shutdown_nothing_is_drawn_any_more(self, ending):
        results = ending.map(square, Drawn(), buffersize=3)
        assert next(results) == 0
        ending.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            list(results)

    def test_one_that_was_never_asked_does_not_hold_up_the_shutdown(self):
        executor = Executor(1)
        executor.map(square, Drawn(), buffersize=3)
        executor.shutdown()

    def test_without_its_executor_it_yields_what_was_drawn(self):
        executor = Executor(1)
        results = executor.map(square, Drawn(), buffersize=3)
        del executor
        assert list(results) == [0, 1, 4]
