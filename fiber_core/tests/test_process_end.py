"""What a child does at its end, besides ending."""

from __future__ import annotations

import atexit
import sys
from multiprocessing import util

import pytest

import fiber

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
