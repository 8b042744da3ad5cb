"""``breakpoint()`` in workers: one prompt at a time on the terminal of their program."""

import os
import signal
import subprocess
import sys

import pytest

from terminals import Terminal

HEAD = """
import fiber

def double(number):
    for _ in range(1):
        breakpoint()
    return number * 2

def wait_at_prompt(number):
    breakpoint()
    return number
"""


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def started(body, **environ):
        program = tmp_path / "program.py"
        program.write_text(HEAD + "\nif __name__ == '__main__':\n" + body)
        opened.append(Terminal(program, {**os.environ, "FIBER_DEBUGGER": "1", **environ}))
        return opened[-1]

    yield started
    for one in opened:
        one.close()


MAP = """
    with fiber.Executor(2) as executor:
        print("results", list(executor.map(double, [1, 2])))
"""


def test_workers_that_stop_get_the_terminal_one_after_the_other(terminal):
    shown = terminal(MAP)
    numbers = set()
    for _ in range(2):
        shown.expect(r"fiber: PoolWorker-\d+ \(pid \d+ on \S+\), double\[\d\], has stopped")
        shown.expect(r"PoolWorker-\d+ on \S+, double\[\d\] \(Pdb\) ")
        shown.type("p 'number', number\n")
        numbers.add(shown.expect(r"\('number', (\d)\)")[1])
        shown.expect(r"\(Pdb\) ")
        # the other one waits
        assert "has stopped" not in shown.shown
        shown.type("c\n")

    assert numbers == {"1", "2"}
    code, rest = shown.end()
    assert code == 0
    assert "results [2, 4]" in rest


def test_steps_keep_the_terminal_until_the_task_returns(terminal):
    shown = terminal("    print('result', fiber.Executor(1).submit(double, 4).result())\n")
    # where the first stop is differs between versions of Python
    while "return" not in shown.expect(r"-> (.*)\r\n")[1]:
        shown.expect(r"\(Pdb\) ")
        shown.type("n\n")
    shown.expect(r"\(Pdb\) ")
    shown.type("number = 5\n")
    shown.expect(r"\(Pdb\) ")
    shown.type("n\n")
    shown.expect(r"--Return--")
    shown.expect(r"\(Pdb\) ")
    shown.type("n\n")
    shown.expect(r"result 10")

    code, rest = shown.end()
    assert code == 0
    assert "Pdb" not in rest


@pytest.mark.parametrize("typed", ["q\n", "\x04"], ids=["q", "end of file"])
def test_a_task_that_is_quit_fails_and_its_worker_goes_on(terminal, typed):
    shown = terminal(
        """
    with fiber.Executor(1) as executor:
        print("failed", type(executor.submit(double, 1).exception()).__name__)
        print("then", executor.submit(abs, -7).result())
"""
    )
    shown.expect(r"\(Pdb\) ")
    shown.type(typed)

    code, rest = shown.end()
    assert code == 0
    assert "failed BdbQuit" in rest
    assert "then 7" in rest


def test_a_worker_that_dies_at_the_prompt_leaves_it_to_the_next(terminal):
    shown = terminal(MAP)
    pid = int(shown.expect(r"\(pid (\d+) on")[1])
    shown.expect(r"\(Pdb\) ")
    os.kill(pid, signal.SIGKILL)
    shown.expect(r"fiber: PoolWorker-\d+ .* has ended at the prompt")
    # the other one, and the task that runs again
    for _ in range(2):
        shown.expect(r"has stopped")
        shown.expect(r"\(Pdb\) ")
        shown.type("c\n")

    code, rest = shown.end()
    assert code == 0
    assert "results [2, 4]" in rest


def test_an_interrupt_at_the_prompt_ends_the_program(terminal):
    shown = terminal(
        """
    with fiber.Pool(1) as pool:
        pool.map(wait_at_prompt, [1])
"""
    )
    shown.expect(r"wait_at_prompt\[0\] \(Pdb\) ")
    shown.type("\x03")

    code, rest = shown.end()
    assert code != 0
    assert "KeyboardInterrupt" in rest


def test_a_process_has_a_prompt_too(terminal):
    shown = terminal(
        """
    process = fiber.Process(target=double, args=(1,), name="lonely")
    process.start()
    process.join()
    print("code", process.exitcode)
"""
    )
    shown.expect(r"fiber: lonely \(pid \d+ on \S+\) has stopped")
    shown.expect(r"lonely on \S+ \(Pdb\) ")
    shown.type("c\n")
    shown.expect(r"code 0")

    assert shown.end()[0] == 0


def test_without_a_terminal_a_breakpoint_is_a_warning_once_and_the_task_goes_on(tmp_path):
    (tmp_path / "program.py").write_text(
        HEAD
        + "\nif __name__ == '__main__':\n    print(fiber.Executor(1).submit(sum, [1]).result())\n"
        "    with fiber.Executor(1) as executor: print(list(executor.map(double, [1, 2])))\n"
    )

    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env={**os.environ, "FIBER_DEBUGGER": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, "1\n[2, 4]\n"), done.stderr
    assert done.stderr.count("breakpoint() goes on in PoolWorker-") == 1
    assert "has no prompt (its standard input is no terminal)" in done.stderr


def test_pythons_own_variable_comes_first(terminal):
    shown = terminal(MAP, PYTHONBREAKPOINT="0")

    code, rest = shown.end()

    assert code == 0
    assert "results [2, 4]" in rest
