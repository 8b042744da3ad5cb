"""An answer arrives as an event, and the terminal is not read after the question."""

import os
import queue
import threading
from types import SimpleNamespace

import pytest

from fiber.cli.watch import Question, can_ask

PATIENCE = 30.0


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

        assert answers.get(timeout=PATIENCE) == answer

    assert capsys.readouterr().err.startswith("well? ")


def test_it_can_be_asked_again(terminal, answers):
    with Question(answers.put) as question:
        for typed in (b"a\n", b"b\n"):
            question.ask("well? ")
            os.write(terminal, typed)
            assert answers.get(timeout=PATIENCE) == typed.decode().strip()
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
