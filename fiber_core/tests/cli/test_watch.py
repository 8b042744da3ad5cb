"""Events and signals come in one queue; the end of a stream is an error."""

import os
import signal
import threading
import time

import pytest

from fiber.cli.errors import Interrupted
from fiber.cli.watch import Watcher
from fiber.exceptions import BackendUnavailableError
from fiber.model import JobSpec
from fiber.testing import FakeBackend, programs


@pytest.fixture
def backend(platform):
    made = FakeBackend(platform=platform)
    yield made
    made.close()


def submit(backend, run_id):
    return backend.submit(JobSpec(run_id=run_id, name="x", argv=programs.exit_with(0)))


def soon():
    return time.monotonic() + 30


def test_events_of_several_runs_come_together(backend):
    watcher = Watcher(backend, "00000001", "00000002")
    wanted = {submit(backend, "00000001").id, submit(backend, "00000002").id}

    while wanted:
        job, status = watcher.get(until=soon())
        if status.state.is_terminal:
            wanted.remove(job.id)


def test_waiting_has_an_end(backend):
    assert Watcher(backend, "00000001").get(until=time.monotonic()) is None


def test_a_stream_that_ends_is_an_error(backend):
    watcher = Watcher(backend, "00000001")
    backend.close()

    with pytest.raises(BackendUnavailableError, match="events of run 00000001 have ended"):
        watcher.get(until=soon())


def test_what_a_stream_raises_is_raised(backend, monkeypatch):
    def events(_):
        raise BackendUnavailableError("no answer")

    monkeypatch.setattr(backend, "events", events)

    with pytest.raises(BackendUnavailableError, match="no answer"):
        Watcher(backend, "00000001").get(until=soon())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_event_and_wakes_the_waiter(backend, number):
    watcher = Watcher(backend)
    killer = threading.Timer(0.05, os.kill, (os.getpid(), number))

    with watcher.signals():
        watcher.queue_signals()
        killer.start()
        assert watcher.get(until=soon()) == number
    killer.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_has_to_end_first_is_raised(backend, number):
    with pytest.raises(Interrupted) as caught, Watcher(backend).signals():
        os.kill(os.getpid(), number)

    assert caught.value.number == number


def test_signals_are_as_before_afterwards(backend):
    before = signal.getsignal(signal.SIGINT)

    with Watcher(backend).signals():
        assert signal.getsignal(signal.SIGINT) != before

    assert signal.getsignal(signal.SIGINT) == before


def test_a_signal_that_is_ignored_stays_ignored(backend):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Watcher(backend).signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
