"""Events and signals come in one queue, and answers of a terminal, which is read when asked."""

import os
import queue
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from fiber.cli.errors import Interrupted
from fiber.cli.watch import Question, Watcher, can_ask
from fiber.exceptions import BackendUnavailableError
from fiber.testing import programs


def soon():
    return time.monotonic() + 30


def test_events_of_several_runs_come_together(backend, submit):
    runs = ("00000001", "00000002")
    watcher = Watcher(backend, *runs)
    wanted = {submit(programs.exit_with(0), run_id=run).id for run in runs}

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


@pytest.fixture
def terminal(monkeypatch):
    """The other end of our standard input."""
    theirs, ours = os.openpty()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(fileno=lambda: theirs, isatty=lambda: True))
    yield ours
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def answers():
    return queue.SimpleQueue()


@pytest.mark.parametrize(
    "typed,answer", [(b"y\n", "y"), (b" YES \n", "yes"), (b"\n", ""), (b"\xff\n", "\ufffd")]
)
def test_the_typed_line_is_the_answer(terminal, answers, typed, answer, capsys):
    with Question(answers.put) as question:
        question.ask("well? ")
        os.write(terminal, typed)

        assert answers.get(timeout=30) == answer

    assert capsys.readouterr().err.startswith("well? ")


def test_it_can_be_asked_again(terminal, answers):
    with Question(answers.put) as question:
        for typed in (b"a\n", b"b\n"):
            question.ask("well? ")
            os.write(terminal, typed)
            assert answers.get(timeout=30) == typed.decode().strip()
            question._thread.join()
            assert not question.is_open


def test_an_unanswered_one_ends_with_its_block(terminal, answers, capsys):
    before = threading.active_count()

    with Question(answers.put) as question:
        question.ask("well? ")
        assert question.is_open

    assert threading.active_count() == before
    assert answers.empty()
    assert capsys.readouterr().err == "well? \n"


def test_nothing_is_read_before_it_is_asked(terminal, answers):
    os.write(terminal, b"typed before\n")

    with Question(answers.put) as question:
        assert not question.is_open

    assert answers.empty()


def test_questions_are_possible_where_both_ends_are_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert can_ask()

    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: False))
    assert not can_ask()
