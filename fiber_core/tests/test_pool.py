"""Pool: results, order, exceptions, callbacks, life and death of workers."""

import functools
import os
import platform
import random
import signal
import threading
import time
from multiprocessing.pool import MaybeEncodingError, RemoteTraceback

import pytest

import fiber
from fiber.exceptions import StartError, TerminatedError, WorkerCrashedError
from pool_tasks import die_at, die_once, fail_at, refuse_to_start, square
from waiting import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def append(values):
    values.append(1)
    return len(values)


def length_with(values, *item):
    values.append(item)
    return len(values)


class Counter:
    """Its method changes it."""

    def __init__(self):
        self.calls = 0

    def count(self, *_):
        self.calls += 1
        return self.calls


class Unreadable:
    def __reduce__(self):
        return int, ("unreadable",)


def add(a, b=0):
    return a + b


def note(path, text):
    with open(path, "a") as file:
        file.write(text)


def note_slowly(path, text):
    time.sleep(0.01)
    note(path, text)


die_on_five = functools.partial(die_at, bad=5)
fail_on_three = functools.partial(fail_at, bad=3)


def nap(seconds):
    time.sleep(seconds)
    # the numbers of processes on two hosts may be the same
    return platform.node(), os.getpid()


def hold(ready, _):
    ready.release()
    time.sleep(600)


class DifficultError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first}-{second}")


def raise_difficult(_):
    raise DifficultError("a", "b")


@pytest.fixture
def ending():
    """A pool that the test ends."""
    with fiber.Pool(3) as pool:
        yield pool
    pool.join()


@pytest.fixture(scope="module")
def pool(shared_runtime):
    """A pool for tests that end no worker, with all its workers and threads up."""
    with fiber.Pool(3) as pool:
        called = threading.Event()
        pool.apply_async(square, (1,), callback=lambda _: called.set())
        assert called.wait(60)
        until(lambda: len(set(pool.map(nap, [0.02] * 9))) == 3)
        yield pool
    pool.join()


class TestResults:
    @pytest.mark.parametrize(
        "call,expected",
        [
            (lambda pool: list(pool.imap(square, [])), []),
            (lambda pool: pool.apply(add, (1,), {"b": 2}), 3),
            (lambda pool: list(pool.imap(lambda _: None, range(20))), [None] * 20),
        ],
        ids=["nothing", "keywords", "None"],
    )
    def test_results_are_those_of_the_calls(self, pool, call, expected):
        assert call(pool) == expected


def test_tasks_submitted_one_by_one_begin_in_their_order_whatever_their_functions(tmp_path):
    path, text = str(tmp_path / "notes"), "abcdefghijklmnop"
    with fiber.Pool(1) as pool:
        for letter in text:
            function = random.choice([note, note_slowly, functools.partial(note)])
            result = pool.apply_async(function, (path, letter))
        result.get()
    assert (tmp_path / "notes").read_text() == text


class TestErrors:
    def test_an_exception_is_raised_with_its_remote_traceback(self, pool):
        with pytest.raises(ValueError, match="bad 3") as caught:
            pool.map(fail_on_three, range(10))
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "fail_at" in str(caught.value.__cause__)

    @pytest.mark.parametrize(
        "function,items,error,text",
        [
            pytest.param(fail_on_three, [3], ValueError, "bad 3", id="raised"),
            pytest.param(
                lambda _: threading.Lock(), [1], MaybeEncodingError, "pickle", id="a result"
            ),
            pytest.param(square, [(i for i in range(3))], TypeError, "pickle", id="an argument"),
            # its class cannot be called with what it keeps
            pytest.param(raise_difficult, range(3), DifficultError, "a-b", id="an exception"),
        ],
    )
    def test_the_pool_goes_on_after_what_was_raised_or_cannot_be_pickled(
        self, pool, function, items, error, text
    ):
        with pytest.raises(error, match=text):
            pool.map(function, items)
        with pytest.raises(error, match=text):
            pool.apply(function, (items[0],))
        assert pool.map(square, range(10)) == [x * x for x in range(10)]

    def test_an_argument_that_cannot_be_pickled_is_told_in_one_line(self, pool):
        with pytest.raises(TypeError) as caught:
            pool.map(square, [1, threading.Lock()])
        told = "TypeError: cannot pickle '_thread.lock' object"
        assert str(caught.value.__cause__).split("\n") == ["", '"""', told, '"""']

    @pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_an_iterable_that_raises_ends_imap_with_its_error(self, pool, error):
        def numbers():
            yield 1
            yield 2
            raise error("the iterable")

        results = pool.imap(square, numbers())
        assert [next(results), next(results)] == [1, 4]
        with pytest.raises(error, match="the iterable"):
            next(results)


class TestLife:
    def test_the_default_is_one_worker_a_cpu(self):
        with fiber.Pool() as pool:
            assert pool.size == pool._processes == fiber.cpu_count()

    def test_a_subclass_has_names_of_its_own_that_the_stdlibs_pool_does_not_have(self):
        class Sized(fiber.pool.Pool):
            def __init__(self, processes):
                super().__init__(processes)
                self.size = self._processes + 5

        with Sized(1) as pool:
            assert pool.size == 6
            assert "pool_size=1" in repr(pool)

    def test_terminate_ends_what_is_at_hand_with_an_error(self):
        pool = fiber.Pool(2)
        result = pool.map_async(nap, [60] * 4)
        pool.terminate()
        pool.join()
        with pytest.raises(TerminatedError):
            result.get(10)

    def test_a_failing_initializer_is_an_error_not_a_hang(self):
        with (
            fiber.Pool(2, initializer=refuse_to_start) as pool,
            pytest.raises(StartError, match="initializer on purpose"),
        ):
            pool.map(square, range(3))


class TestDeath:
    def test_a_task_that_always_kills_its_worker_is_reported_with_its_attempts(self, ending):
        with pytest.raises(WorkerCrashedError, match="task 5 was given up") as caught:
            ending.map(die_on_five, range(10))
        error = caught.value
        assert len(error.attempts) == 3
        assert all(str(attempt.reason) == "SIGNAL(9)" for attempt in error.attempts)
        assert all("last words" in attempt.log_tail for attempt in error.attempts)
        assert [r for n, r in enumerate(error.results) if n != 5] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert error.results[5] is error

    @pytest.mark.parametrize(
        "pool_class,call",
        [
            (fiber.Pool, lambda pool, task: pool.map(task, range(9))),
            (fiber.Pool, lambda pool, task: list(pool.imap_unordered(task, range(9)))),
            (fiber.Executor, lambda executor, task: list(executor.map(task, range(9)))),
        ],
        ids=["map", "imap", "executor"],
    )
    def test_an_interrupted_call_ends_with_its_tasks_and_the_workers_take_others(
        self, pool_class, call
    ):
        ready = fiber.Semaphore(0)

        def interrupt():
            assert all(ready.acquire(timeout=50) for _ in range(2))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        interrupter = threading.Thread(target=interrupt)
        with pool_class(2) as pool:
            interrupter.start()
            with pytest.raises(KeyboardInterrupt):
                call(pool, functools.partial(hold, ready))
            interrupter.join()
            assert list(pool.map(square, range(5))) == [x * x for x in range(5)]
            assert not ready.acquire(block=False)
        if pool_class is fiber.Pool:
            pool.join()

    def test_without_error_handling_nothing_runs_twice(self, tmp_path):
        with fiber.Pool(2, error_handling=False) as pool:
            with pytest.raises(WorkerCrashedError, match="must not run twice"):
                pool.apply(die_once, (str(tmp_path / "flag"),))
            assert pool.apply(square, (3,)) == 9

    def test_meta_retry_false_does_it_for_one_function(self, ending, tmp_path):
        once = fiber.meta(retry=False)(functools.partial(die_once, str(tmp_path / "flag")))
        with pytest.raises(WorkerCrashedError, match="must not run twice"):
            ending.apply(once)


class TestIsolation:
    """Tasks may change objects that come in the arguments of several of them."""

    @pytest.fixture
    def pool(self):
        with fiber.Pool(2) as made:
            # short tasks travel together
            made.map(abs, range(1000), chunksize=1)
            yield made

    @pytest.mark.parametrize("kind", ["map", "imap"])
    def test_what_a_task_does_to_an_object_no_other_task_sees(self, pool, kind):
        shared = []
        assert set(getattr(pool, kind)(append, [shared] * 1000, chunksize=1)) == {1}
        assert shared == []

    def test_what_an_object_is_within_a_chunk_is_as_in_the_standard_library(self, pool):
        assert pool.map(append, [[]] * 6, chunksize=3) == [1, 2, 3] * 2

    @pytest.mark.parametrize("kind", ["map", "starmap"])
    def test_a_method_or_partial_finds_its_object_anew_in_each_chunk_that_the_program_chose(
        self, pool, kind
    ):
        call = getattr(pool, kind)
        items = [()] * 1001 if kind == "starmap" else range(1001)
        for counts in (Counter().count, functools.partial(length_with, [])):
            assert call(counts, items, chunksize=3) == [1, 2, 3] * 333 + [1, 2]
            assert set(call(counts, items, chunksize=1)) == {1}

    def test_so_does_a_method_of_a_built_in_type(self, pool):
        draw = random.Random(1).getrandbits
        first, second = draw(32), draw(32)
        draw = random.Random(1).getrandbits
        assert pool.map(draw, [32] * 20, chunksize=2) == [first, second] * 10

    def test_so_it_does_for_each_item_of_imap_and_of_an_executors_map(self, pool):
        assert set(pool.imap(Counter().count, range(1000))) == {1}
        with fiber.Executor(2) as executor:
            assert set(executor.map(Counter().count, range(1000))) == {1}

    def test_a_large_object_is_there_once_and_items_that_cannot_be_unpickled_fail_alone(self, pool):
        counter = Counter()
        counter.large = b"x" * 2**20
        counts = pool.map(counter.count, range(100), chunksize=1)
        assert max(counts) > 1
        found = pool.map_async(Counter().count, [1, Unreadable(), 2], chunksize=1)
        with pytest.raises(ValueError, match="unreadable"):
            found.get()
        assert list(pool.imap(Counter().count, [1, 2])) == [1, 1]
