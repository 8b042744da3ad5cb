"""Output and exit of children; a runtime of its own for each test, whose output is captured."""

from __future__ import annotations

import atexit
import subprocess
import sys
from multiprocessing import util

import pytest

import fiber
from fiber.exceptions import StartError

ORDERED = """
import fiber

def work():
    print("worker", flush=True)

if __name__ == "__main__":
    print("before")
    child = fiber.Process(target=print, args=("child",))
    child.start()
    child.join()
    print("between")
    with fiber.Pool(1) as pool:
        pool.apply(work)
    pool.join()
    print("after")
"""


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


def test_what_the_parent_wrote_before_it_started_a_child_comes_before_what_that_writes(
    tmp_path, monkeypatch
):
    # into a pipe a program's output is buffered in blocks, unless this is set
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = tmp_path / "program.py"
    script.write_text(ORDERED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["before", "child", "between", "worker", "after"]


# What is left for the end.

_kept = []


def register_a_finalizer():
    util.Finalize(None, say, args=("finalized",), exitpriority=10)


def register_an_exit_function():
    atexit.register(say, "at exit")


def leave_a_grandchild():
    fiber.Process(target=say, args=("grandchild",)).start()


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
    assert run(target).exitcode == 0
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
