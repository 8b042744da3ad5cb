"""Threads that do one thing after another, which no failure of one keeps from the next."""

import logging
import queue
import sys
import threading

import pytest

from fiber._base.serial_executor import CallbackThread, SerialExecutor
from fiber.exceptions import PeerLostError


@pytest.fixture
def executor():
    executor = SerialExecutor("test-executor", expected=PeerLostError)
    yield executor
    executor.close()


@pytest.fixture
def callbacks():
    callbacks = CallbackThread("test-callbacks")
    yield callbacks
    callbacks.close()


@pytest.fixture(params=["executor", "callbacks"])
def runner(request):
    return request.getfixturevalue(request.param)


def submit(runner, action):
    if isinstance(runner, CallbackThread):
        return runner.put(lambda _: action(), None)
    return runner.submit(action)


def test_actions_run_in_order_on_a_thread_of_their_own_and_none_after_the_end(runner, request):
    done = []
    for number in range(5):
        assert submit(runner, lambda n=number: done.append((n, threading.current_thread().name)))
    runner.close()
    runner.close()
    assert not submit(runner, lambda: done.append("late"))

    name = f"test-{request.node.callspec.params['runner']}"
    assert done == [(number, name) for number in range(5)]


def test_it_may_close_itself_and_the_thread_still_ends(runner):
    threads = queue.SimpleQueue()

    def close():
        threads.put(threading.current_thread())
        runner.close()

    submit(runner, close)
    thread = threads.get(timeout=20)
    thread.join(20)
    assert not thread.is_alive()


def test_what_ran_is_not_kept_alive_by_its_thread(runner):
    ran = threading.Event()
    value = [1]
    count = sys.getrefcount(value)
    submit(runner, lambda kept=value: None)
    submit(runner, ran.set)
    assert ran.wait(20)
    assert sys.getrefcount(value) == count


def test_one_that_fails_is_logged_and_the_next_is_done(executor, caplog):
    done = []
    executor.submit(lambda: 1 / 0)
    executor.submit(lambda: done.append(True))

    assert executor.drain(10)
    assert done == [True]
    assert "ZeroDivisionError" in caplog.text


def test_the_loss_of_the_process_it_talks_to_is_no_failure(executor, caplog):
    def lose():
        raise PeerLostError("gone")

    with caplog.at_level(logging.INFO, logger="fiber"):
        executor.submit(lose)
        assert executor.drain(10)
    assert not caplog.records


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_a_callback_is_reported_and_the_next_one_runs(
    callbacks, monkeypatch, error
):
    def fail(_):
        raise error

    seen, raised = [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    callbacks.put(fail, 1)
    callbacks.put(seen.append, 2)
    callbacks.close()
    assert seen == [2]
    assert raised == [error]


def test_no_thread_is_started_for_nothing(callbacks):
    before = threading.active_count()
    callbacks.close()
    assert threading.active_count() == before


def test_a_wait_for_what_takes_too_long_ends(executor, callbacks):
    gate = threading.Event()
    executor.submit(gate.wait)
    callbacks.put(lambda _: gate.wait(20), 1)

    assert not executor.drain(0.01)
    callbacks.close(0)
    gate.set()
