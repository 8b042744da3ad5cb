"""Output and exit of children; a runtime of its own for each test, whose output is captured."""

import sys
from multiprocessing import util
from unittest.mock import Mock

import pytest

import fiber
from children import finish, start
from fiber.exceptions import StartError
from waiting import PATIENCE


def fail():
    raise ValueError("on purpose")


@pytest.mark.parametrize(
    "target,arguments,said",
    [
        (sys.exit, ["a text"], ["a text"]),
        (fail, [], ["Process {name}:", "ValueError: on purpose"]),
    ],
    ids=["an exit with a text", "an exception"],
)
def test_what_a_child_failed_with_reaches_the_parents_terminal(target, arguments, said, capfd):
    process = start(target, *arguments)
    process.join(PATIENCE)
    assert process.exitcode == 1
    told = capfd.readouterr().err
    for text in said:
        assert text.format(name=process.name) in told


_kept = []


def leave_a_grandchild():
    fiber.Process(target=print, args=("grandchild",)).start()


def leave_work_in_an_executor():
    _kept.append(fiber.Executor(1))
    _kept[0].submit(print, "executed")


@pytest.mark.parametrize(
    "target,said",
    [
        (leave_a_grandchild, "grandchild"),
        (leave_work_in_an_executor, "executed"),
    ],
)
def test_what_was_left_for_the_end_is_done(target, said, capfd):
    finish(start(target))
    assert capfd.readouterr().out.split("\n") == [said, ""]


@pytest.mark.parametrize("is_logged", [False, True])
def test_one_that_never_came_up_keeps_the_program_from_no_end(monkeypatch, caplog, is_logged):
    """The standard library joins what is left at the end, before the run is closed."""
    process = fiber.Process(target=print)
    never = StartError("Process-1 did not start (IMAGE: no such image)")
    raises = Mock(side_effect=never)
    process._popen = Mock(
        wait=lambda timeout: 1, raise_if_never_started=raises, is_failure_logged=is_logged
    )
    with pytest.raises(StartError):
        process.join()

    monkeypatch.setattr(util, "_exiting", True)
    process.join()

    # once
    assert ("no such image" in caplog.text) == (not is_logged)
