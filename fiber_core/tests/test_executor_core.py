"""Executor: its workers, their lives and deaths."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

import fiber
import process_signals
from fiber.exceptions import StartError, WorkerCrashedError
from fiber.executor import BrokenExecutor, Executor
from pool_tasks import nap, pid

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]

PATIENCE = 30
_state = []


def square(x):
    return x * x


def die_at(number, bad):
    if number == bad:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return number


def die_once(path):
    try:
        with open(path, "x"):
            pass
    except FileExistsError:
        return "survived"
    os.kill(os.getpid(), signal.SIGKILL)


def refuse_to_start():
    raise RuntimeError("initializer on purpose")


def note_state(value):
    _state.append(value)


def get_state():
    return list(_state)


def count_up(_):
    _state.append(1)
    return len(_state)


@pytest.fixture
def executor():
    with Executor(2) as executor:
        yield executor


class TestWorkers:
    @pytest.mark.parametrize("number", [0, -1])
    def test_bad_numbers_are_refused(self, number):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            Executor(number)
        with pytest.raises(ValueError, match="max_tasks_per_child must be >= 1"):
            Executor(1, max_tasks_per_child=number)
        with pytest.raises(TypeError, match="must be an integer"):
            Executor(1, max_tasks_per_child=1.5)
        with pytest.raises(TypeError, match="initializer must be a callable"):
            Executor(1, initializer=3)

    def test_the_default_is_one_worker_a_cpu(self):
        with Executor() as executor:
            assert executor._max_workers == fiber.cpu_count()

    def test_the_initializer_runs_first_in_each(self):
        with Executor(2, initializer=note_state, initargs=("set",)) as executor:
            assert executor.submit(get_state).result(PATIENCE) == ["set"]

    def test_a_worker_does_so_many_tasks_and_is_replaced(self):
        with Executor(1, max_tasks_per_child=2) as executor:
            futures = [executor.submit(count_up, None) for _ in range(5)]
            assert [future.result(PATIENCE) for future in futures] == [1, 2, 1, 2, 1]

    def test_a_context_of_the_standard_library_is_accepted(self):
        import multiprocessing

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
        futures = [executor.submit(nap, 0.002) for _ in range(500)]
        killed = []
        for _ in range(3):
            executor.submit(pid).result(PATIENCE)
            killed.append(next(one for one in fiber.active_children() if one not in killed))
            process_signals.kill(killed[-1])
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
