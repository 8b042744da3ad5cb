"""The reactor: actions run in order, whatever others raise."""

from __future__ import annotations

import functools
import logging
import os
import queue
import socket
import threading
import time

import psutil
import pytest

from fiber._base.threads import Reactor
from wire_world import TIMEOUT, until


@pytest.fixture
def called():
    return queue.Queue()


def get(called, count):
    return [called.get(timeout=TIMEOUT) for _ in range(count)]


class TestActions:
    def test_they_run_on_its_thread_in_their_order(self, reactor, called):
        for number in range(100):
            reactor.call_soon(lambda number=number: called.put((number, reactor.is_current)))
        assert get(called, 100) == [(number, True) for number in range(100)]
        assert not reactor.is_current

    def test_no_wake_up_is_lost_when_it_is_about_to_sleep(self, reactor, called):
        for _ in range(2000):
            reactor.call_soon(lambda: called.put(None))
            called.get(timeout=TIMEOUT)

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
    def test_one_that_raises_is_logged_and_the_others_go_on(self, reactor, called, caplog, error):
        def fail():
            raise error("as meant")

        with caplog.at_level(logging.ERROR, "fiber"):
            reactor.call_soon(fail)
            reactor.call_soon(lambda: called.put("after"))
            assert get(called, 1) == ["after"]
        assert "an event handler failed" in caplog.text
        assert "as meant" in caplog.text


class TestTimers:
    def test_only_one_that_it_would_miss_wakes_it(self, called, monkeypatch):
        monkeypatch.setattr(Reactor, "_wake", lambda _: called.put("woken"))
        # it looks by itself so often
        reactor = Reactor(max_wait=0.1)
        try:
            reactor.call_later(0.2, lambda: called.put("run"))
            assert get(called, 1) == ["run"]
        finally:
            reactor.stop()
        assert called.get(timeout=TIMEOUT) == "woken"

    def test_they_run_in_the_order_of_their_times(self, reactor, called):
        # on a busy machine the last of them may be due after the first
        timers = [
            reactor.call_later(delay, lambda delay=delay: called.put(delay))
            for delay in (0.06, 0.02, 0.04, 0.0)
        ]
        whens = dict(zip((0.06, 0.02, 0.04, 0.0), (timer.when for timer in timers), strict=True))
        assert get(called, 4) == sorted(whens, key=whens.__getitem__)

    def test_an_earlier_one_wakes_it(self, reactor, called):
        reactor.call_later(3600, lambda: called.put("late"))
        # at some of these it sleeps already
        for number in range(50):
            reactor.call_later(0.01, functools.partial(called.put, number))
            assert get(called, 1) == [number]

    def test_a_cancelled_one_never_runs(self, reactor, called):
        cancelled = reactor.call_later(0.01, lambda: called.put("cancelled"))
        cancelled.cancel()
        reactor.call_later(0.02, lambda: called.put("other"))
        assert get(called, 1) == ["other"]
        assert called.empty()

    def test_a_timer_may_cancel_another_that_is_due_too(self, reactor, called):
        timers = []

        def first():
            timers[0].cancel()
            called.put("first")

        def both():
            reactor.call_later(0, first)
            timers.append(reactor.call_later(0, lambda: called.put("second")))

        reactor.call_soon(both)
        reactor.call_later(0.05, lambda: called.put("last"))
        assert get(called, 2) == ["first", "last"]

    def test_timers_and_actions_do_not_starve_each_other(self, reactor, called):
        stop = threading.Event()

        def again():
            if not stop.is_set():
                reactor.call_soon(again)

        reactor.call_soon(again)
        reactor.call_later(0.01, lambda: called.put("timer"))
        assert get(called, 1) == ["timer"]
        stop.set()


class TestReaders:
    @pytest.fixture
    def pair(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield ours, theirs

    def test_when_it_is_removed_no_call_is_running_and_none_comes(self, reactor, pair):
        ours, theirs = pair
        running = threading.Event()
        calls = []

        def action():
            calls.append("begun")
            running.set()
            time.sleep(0.02)
            calls.append("ended")

        reactor.add_reader(ours.fileno(), action)
        theirs.send(b"x")
        assert running.wait(TIMEOUT)
        reactor.remove_reader(ours.fileno())
        seen = list(calls)

        assert seen.count("begun") == seen.count("ended")
        done = threading.Event()
        reactor.call_soon(done.set)
        assert done.wait(TIMEOUT)
        assert calls == seen
        reactor.remove_reader(ours.fileno())

    def test_a_reader_that_raises_is_called_again(self, reactor, called, pair, caplog):
        ours, theirs = pair

        def fail_once():
            called.put(ours.recv(1))
            if called.qsize() == 1:
                raise RuntimeError("as meant")

        reactor.add_reader(ours.fileno(), fail_once)
        theirs.send(b"ab")
        until(lambda: called.qsize() == 2)
        assert get(called, 2) == [b"a", b"b"]
        assert caplog.text.count("as meant") >= 1
        reactor.remove_reader(ours.fileno())


class TestItsEnd:
    def test_stopping_joins_its_thread_and_closes_its_descriptors(self):
        before = psutil.Process().num_fds()
        reactors = [Reactor(f"test-handler-{number}") for number in range(5)]
        for reactor in reactors:
            reactor.stop()
            reactor.stop()
        assert psutil.Process().num_fds() == before
        assert not any(t.name.startswith("test-handler") for t in threading.enumerate())

    def test_it_may_stop_itself(self, called):
        reactor = Reactor("test-handler")
        reactor.call_soon(lambda: (reactor.stop(), called.put("stopped")))
        assert get(called, 1) == ["stopped"]
        until(lambda: not any(t.name == "test-handler" for t in threading.enumerate()))

    def test_calls_after_its_end_do_nothing_and_touch_no_descriptor(self, called):
        """Threads of nng's may still have news when the reactor is gone."""
        reactor = Reactor("test-handler")
        reactor.stop()
        # these get the numbers that were the reactor's
        pipes = [os.pipe() for _ in range(4)]
        try:
            reactor.call_soon(lambda: called.put("never"))
            reactor.call_later(0, lambda: called.put("never"))
            for read, _ in pipes:
                os.set_blocking(read, False)
                with pytest.raises(BlockingIOError):
                    os.read(read, 1)
        finally:
            for ends in pipes:
                for fd in ends:
                    os.close(fd)
        assert called.empty()
