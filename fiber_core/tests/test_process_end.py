"""Exit of a child: handlers, joins and output."""

from __future__ import annotations

import atexit
import sys
from multiprocessing import util

import pytest

import fiber
from fiber.exceptions import StartError

_kept = []


def say(text):
    print(text)


def register_a_finalizer():
    util.Finalize(None, say, args=("finalized",), exitpriority=10)


def register_an_exit_function():
    atexit.register(say, "at exit")


def leave_a_grandchild():
    process = fiber.Process(target=say, args=("grandchild",))
    process.start()


def leave_work_in_an_executor():
    _kept.append(fiber.Executor(1))
    _kept[0].submit(say, "executed")


@pytest.mark.parametrize(
    "target,said",
    [
        (register_a_finalizer, "finalized"),
        pytest.param(
            register_an_exit_function,
            "at exit",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 13), reason="the stdlib's children run none before 3.13"
            ),
        ),
        (leave_a_grandchild, "grandchild"),
        (leave_work_in_an_executor, "executed"),
    ],
)
def test_what_was_left_for_the_end_is_done(target, said, capfd):
    process = fiber.Process(target=target)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert capfd.readouterr().out.split("\n") == [said, ""]


class NeverStarted:
    """Stands in for a child that never came up."""

    def wait(self, timeout=None):
        return 1

    def raise_if_never_started(self):
        raise StartError("Process-1 did not start (IMAGE: no such image)")


def test_one_that_never_came_up_keeps_the_program_from_no_end(monkeypatch, caplog):
    """The standard library joins what is left at the end, before the run is closed."""
    process = fiber.Process(target=say)
    process._popen = NeverStarted()
    with pytest.raises(StartError):
        process.join()

    monkeypatch.setattr(util, "_exiting", True)
    process.join()

    assert "no such image" in caplog.text
