"""Executor.map: order, chunks, timeouts, errors, and how far ahead it draws."""

from __future__ import annotations

import concurrent.futures
import itertools
from concurrent.futures import CancelledError

import pytest

from fiber.executor import BrokenExecutor, Executor
from pool_tasks import executions, fail_at, nap, note, note_and_nap, pid, refuse_to_start, square

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


@pytest.fixture
def executor():
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


@pytest.mark.parametrize("chunksize", [1, 3, 1000])
def test_results_come_in_order(executor, chunksize):
    assert list(executor.map(square, range(100), chunksize=chunksize)) == [
        x * x for x in range(100)
    ]


def test_iterables_go_side_by_side_to_the_end_of_the_shortest(executor):
    assert list(executor.map(pow, [2, 3, 4], itertools.count(1))) == [2, 9, 64]
    assert list(executor.map(square, [])) == []


def test_items_of_a_chunk_stay_together(executor):
    workers = list(executor.map(pid, range(40), chunksize=10))
    assert all(len(set(workers[start : start + 10])) == 1 for start in range(0, 40, 10))


def test_iterables_are_drawn_at_once(executor):
    drawn = Drawn(50)
    executor.map(square, drawn)
    assert drawn.count == 50


def test_closures_are_called(executor):
    offset = 10
    assert list(executor.map(lambda x: x + offset, range(3))) == [10, 11, 12]


def test_an_exception_is_raised_where_its_result_would_be(executor):
    results = executor.map(fail_at, range(5), [3] * 5)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="bad 3"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_after_an_exception_what_was_not_sent_does_not_run(executor, tmp_path):
    told = tmp_path / "told"
    results = executor.map(note_or_fail, [str(told)] * 400, range(400))
    with pytest.raises(ValueError, match="on purpose"):
        list(results)
    executor.shutdown()
    assert len(executions(told)) < 400


def note_or_fail(path, number):
    if not number:
        raise ValueError("on purpose")
    nap(0.02)
    return note(path, number)


def test_one_that_is_left_cancels_what_was_not_sent(executor, tmp_path):
    told = tmp_path / "told"
    results = executor.map(note_and_nap, [str(told)] * 400, range(400), [0.02] * 400)
    assert next(results) == 0
    results.close()
    executor.shutdown()
    assert len(executions(told)) < 400


def test_a_timeout_counts_from_the_call(executor):
    # a worker is there, however long that takes
    assert executor.submit(nap, 0).result() == 0
    results = executor.map(nap, [0, 60], timeout=0.5)
    assert next(results) == 0
    with pytest.raises(concurrent.futures.TimeoutError):
        next(results)
    executor.kill_workers()


def test_what_does_not_pickle_is_an_error_in_its_place(executor):
    results = executor.map(square, [2, (i for i in range(3))])
    assert next(results) == 4
    with pytest.raises(TypeError, match="pickle"):
        next(results)


def test_bad_numbers_are_refused(executor):
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        executor.map(square, [1], chunksize=0)
    with pytest.raises(ValueError, match="buffersize must be None or > 0"):
        executor.map(square, [1], buffersize=0)
    with pytest.raises(TypeError, match="buffersize must be an integer or None"):
        executor.map(square, [1], buffersize=1.5)


def test_shutdown_may_cancel_what_waits(executor):
    results = executor.map(nap, [0.1] * 100)
    executor.shutdown(cancel_futures=True)
    with pytest.raises(CancelledError):
        list(results)


def test_results_outlive_the_shutdown(executor):
    results = executor.map(square, range(20))
    executor.shutdown()
    assert list(results) == [x * x for x in range(20)]


def test_without_workers_it_is_broken():
    with Executor(1, initializer=refuse_to_start) as executor:
        results = executor.map(square, range(3))
        with pytest.raises(BrokenExecutor, match="initializer on purpose"):
            next(results)
        with pytest.raises(BrokenExecutor, match="initializer on purpose"):
            executor.map(square, range(3))


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

    def test_after_a_shutdown_nothing_is_drawn_any_more(self, executor):
        results = executor.map(square, Drawn(), buffersize=3)
        assert next(results) == 0
        executor.shutdown()
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
