"""Events and signals come in one queue, and answers of a terminal, which is read when asked."""

import os
import queue
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from fiber.cli.watch import Question, Watcher, can_ask
from fiber.exceptions import BackendUnavailableError


def soon():
    return time.monotonic() + 30


def test_a_stream_that_ends_is_an_error(backend):
    watcher = Watcher(backend, "00000001")
    backend.close()

    with pytest.raises(BackendUnavailableError, match="events of run 00000001 have ended"):
        watcher.get(until=soon())


@pytest.mark.parametrize("was", [signal.default_int_handler, signal.SIG_IGN])
def test_signals_are_as_before_afterwards_and_one_that_is_ignored_stays_so(backend, was):
    before = signal.signal(signal.SIGINT, was)
    try:
        with Watcher(backend).signals():
            assert (signal.getsignal(signal.SIGINT) == was) == (was is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) == was
    finally:
        signal.signal(signal.SIGINT, before)


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
def test_the_typed_line_is_the_answer_and_it_can_be_asked_again(
    terminal, answers, typed, answer, capsys
):
    with Question(answers.put) as question:
        for _ in range(2):
            question.ask("well? ")
            os.write(terminal, typed)
            assert answers.get(timeout=30) == answer
            question._thread.join()
            assert not question.is_open

    assert capsys.readouterr().err.startswith("well? ")


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
