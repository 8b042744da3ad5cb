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


def test_actions_are_done_in_order_on_another_thread(executor):
    done = []
    for number in range(5):
        executor.submit(lambda n=number: done.append((n, threading.current_thread().name)))

    assert executor.drain(10)
    assert done == [(n, "test-executor") for n in range(5)]


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


def test_closing_does_what_was_submitted_and_nothing_afterwards(executor):
    done = []
    executor.submit(lambda: done.append(1))
    executor.close()
    executor.submit(lambda: done.append(2))

    assert executor.drain(0)
    assert done == [1]


def test_a_wait_for_what_takes_too_long_ends(executor):
    gate = threading.Event()
    executor.submit(gate.wait)

    assert not executor.drain(0.01)
    gate.set()


@pytest.fixture
def callbacks():
    callbacks = CallbackThread("test-callbacks")
    yield callbacks
    callbacks.close()


@pytest.fixture
def raised(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))
    return seen


def test_callbacks_run_in_order_on_a_thread_of_their_own(callbacks):
    seen = []
    for number in range(10):
        callbacks.put(lambda n: seen.append((n, threading.current_thread().name)), number)
    callbacks.close()
    assert seen == [(number, "test-callbacks") for number in range(10)]


def test_no_thread_is_started_for_nothing(callbacks):
    before = threading.active_count()
    callbacks.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt])
def test_an_exception_is_reported_and_the_next_one_runs(callbacks, raised, error):
    def fail(_):
        raise error

    seen = []
    callbacks.put(fail, 1)
    callbacks.put(seen.append, 2)
    callbacks.close()
    assert seen == [2]
    assert raised == [error]


@pytest.mark.parametrize("kind", ["callbacks", "executor"])
def test_it_may_close_itself_and_the_thread_still_ends(request, kind):
    runner = request.getfixturevalue(kind)
    threads = queue.SimpleQueue()

    def close(*_):
        threads.put(threading.current_thread())
        runner.close()

    if kind == "callbacks":
        runner.put(close, 1)
    else:
        runner.submit(close)
    thread = threads.get(timeout=20)
    thread.join(20)
    assert not thread.is_alive()


def test_what_comes_after_the_end_is_dropped(callbacks):
    seen = []
    callbacks.put(seen.append, 1)
    callbacks.close()
    callbacks.close()
    callbacks.put(seen.append, 2)
    assert seen == [1]


def test_close_waits_no_longer_than_its_timeout(callbacks):
    go_on = threading.Event()
    callbacks.put(lambda _: go_on.wait(20), 1)
    callbacks.close(0)
    go_on.set()


def test_a_callback_is_not_kept_alive_by_the_thread_that_ran_it(callbacks):
    ran = threading.Event()
    value = [1]
    count = sys.getrefcount(value)
    callbacks.put(lambda _: None, value)
    callbacks.put(lambda _: ran.set(), None)
    assert ran.wait(20)
    assert sys.getrefcount(value) == count
