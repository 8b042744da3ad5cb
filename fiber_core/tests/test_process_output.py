"""What children print reaches the parent's terminal; a runtime of its own for each test's capture."""

from __future__ import annotations

import sys

import fiber


def exit_with(code):
    sys.exit(code)


def fail():
    raise ValueError("on purpose")


def say(text):
    print(text)


def run(target, *args):
    process = fiber.Process(target=target, args=args)
    process.start()
    process.join(30)
    return process


def test_an_exit_with_a_text_prints_it_and_is_code_1(capfd):
    assert run(exit_with, "a text").exitcode == 1
    assert "a text" in capfd.readouterr().err


def test_an_exception_is_exit_code_1_and_its_traceback_is_seen(capfd):
    process = run(fail)
    assert process.exitcode == 1
    error = capfd.readouterr().err
    assert f"Process {process.name}:" in error
    assert "ValueError: on purpose" in error


def test_output_reaches_the_parents_terminal(capfd):
    run(say, "hello from a child")
    assert capfd.readouterr().out == "hello from a child\n"
