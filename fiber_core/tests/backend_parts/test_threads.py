"""Calls after a delay: one a key, in their order, on one thread."""

import queue
import threading

import pytest

from fiber.backend_parts.threads import Timers


@pytest.fixture
def timers():
    timers = Timers("fiber-test-timers")
    yield timers
    timers.close()


@pytest.fixture
def calls():
    return queue.SimpleQueue()


def test_a_key_has_one_call_and_that_is_the_one_that_is_due_first(timers, calls):
    timers.set("key", 60.0, lambda: calls.put("late"))
    timers.set("key", 0.02, lambda: calls.put("soon"))
    timers.set("key", 30.0, lambda: calls.put("later"))
    timers.set("other", 0.05, lambda: calls.put("other"))

    assert [calls.get(timeout=30), calls.get(timeout=30)] == ["soon", "other"]
    assert calls.empty()


def test_a_call_may_set_the_next_one_of_its_key_and_may_fail(timers, calls, caplog):
    def again():
        calls.put(threading.current_thread().name)
        timers.set("key", 0.0, lambda: calls.put("next"))
        msg = "a mistake of ours"
        raise RuntimeError(msg)

    timers.set("key", 0.0, again)

    assert [calls.get(timeout=30), calls.get(timeout=30)] == ["fiber-test-timers", "next"]
    assert "a mistake of ours" in caplog.text


def test_what_was_cancelled_is_not_called(timers, calls):
    timers.set("gone", 0.05, lambda: calls.put("gone"))
    timers.cancel("gone")
    timers.set("last", 0.06, lambda: calls.put("last"))

    assert calls.get(timeout=30) == "last"


def test_close_waits_for_the_call_that_runs_and_drops_the_others(timers, calls):
    running, may_end = threading.Event(), threading.Event()

    def call():
        running.set()
        may_end.wait(30)
        calls.put("ended")

    timers.set("key", 0.0, call)
    timers.set("other", 0.0, lambda: calls.put("other"))
    assert running.wait(30)
    threading.Timer(0.02, may_end.set).start()

    timers.close()
    timers.set("key", 0.0, lambda: calls.put("too late"))

    assert calls.get_nowait() == "ended"
    assert calls.empty()
