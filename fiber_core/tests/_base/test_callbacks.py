"""Callbacks run one after another, and none can keep the others from running."""

import sys
import threading

import pytest

from fiber._base.serial_executor import CallbackThread


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


def test_they_run_in_order_on_a_thread_of_their_own(callbacks):
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


def test_one_may_close_them_and_the_thread_still_ends(callbacks):
    threads = []

    def close(_):
        threads.append(threading.current_thread())
        callbacks.close()

    callbacks.put(close, 1)
    while not threads:
        pass
    threads[0].join(20)
    assert not threads[0].is_alive()


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
