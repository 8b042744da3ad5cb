"""Output and exit of children; a runtime of its own for each test, whose output is captured."""

import atexit
import sys
from multiprocessing import util
from unittest.mock import Mock

import pytest

import fiber
from commands import ran
from fiber.exceptions import StartError
from waiting import PATIENCE

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


def fail():
    raise ValueError("on purpose")


def run(target, *args):
    process = fiber.Process(target=target, args=args)
    process.start()
    process.join(PATIENCE)
    return process


@pytest.mark.parametrize(
    "target,arguments,code,said",
    [
        (print, ["hello from a child"], 0, ["hello from a child\n"]),
        (sys.exit, ["a text"], 1, ["a text"]),
        (fail, [], 1, ["Process {name}:", "ValueError: on purpose"]),
    ],
    ids=["output", "an exit with a text", "an exception"],
)
def test_what_a_child_writes_reaches_the_parents_terminal(target, arguments, code, said, capfd):
    process = run(target, *arguments)
    assert process.exitcode == code
    captured = capfd.readouterr()
    for text in said:
        assert text.format(name=process.name) in (captured.err if code else captured.out)


def test_what_the_parent_wrote_before_it_started_a_child_comes_before_what_that_writes(
    tmp_path, monkeypatch
):
    # into a pipe a program's output is buffered in blocks, unless this is set
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = tmp_path / "program.py"
    script.write_text(ORDERED)
    done = ran([sys.executable, script])
    assert done.stderr == ""
    assert done.stdout.split() == ["before", "child", "between", "worker", "after"]


_kept = []


def register_a_finalizer():
    util.Finalize(None, print, args=("finalized",), exitpriority=10)


def register_an_exit_function():
    atexit.register(print, "at exit")


def leave_a_grandchild():
    fiber.Process(target=print, args=("grandchild",)).start()


def leave_work_in_an_executor():
    _kept.append(fiber.Executor(1))
    _kept[0].submit(print, "executed")


@pytest.mark.parametrize(
    "target,said",
    [
        (register_a_finalizer, "finalized"),
        (register_an_exit_function, "at exit"),
        (leave_a_grandchild, "grandchild"),
        (leave_work_in_an_executor, "executed"),
    ],
)
def test_what_was_left_for_the_end_is_done(target, said, capfd):
    assert run(target).exitcode == 0
    assert capfd.readouterr().out.split("\n") == [said, ""]


def test_one_that_never_came_up_keeps_the_program_from_no_end(monkeypatch, caplog):
    """The standard library joins what is left at the end, before the run is closed."""
    process = fiber.Process(target=print)
    never = StartError("Process-1 did not start (IMAGE: no such image)")
    process._popen = Mock(wait=lambda timeout: 1, raise_if_never_started=Mock(side_effect=never))
    with pytest.raises(StartError):
        process.join()

    monkeypatch.setattr(util, "_exiting", True)
    process.join()

    assert "no such image" in caplog.text
