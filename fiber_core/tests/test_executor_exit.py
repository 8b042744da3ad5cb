"""The end of a program that has futures pending: it waits for them, as with the standard library."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

TASKS = """
import os, signal, sys, threading, time, weakref
import fiber

def say(text):
    # in one piece: two processes write there
    os.write(1, f"{text}\\n".encode())

def slow(x):
    time.sleep(0.2)
    say(f"did {x}")
    return x

def die_once(path):
    if not os.path.exists(path):
        open(path, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    print("survived", flush=True)

def begin():
    fiber.Executor(1).submit(slow, 1)
"""


@pytest.fixture
def run(tmp_path):
    def run(body):
        script = tmp_path / "program.py"
        indented = textwrap.indent(textwrap.dedent(body), "    ")
        script.write_text(f'{TASKS}\nif __name__ == "__main__":\n{indented}')
        done = subprocess.run(
            [sys.executable, script, tmp_path / "flag"],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert not done.stderr, done.stderr
        assert done.returncode == 0
        return done.stdout.split("\n")[:-1]

    return run


def test_pending_futures_are_waited_for(run):
    lines = run("""
        executor = fiber.Executor(1)
        for x in range(3):
            executor.submit(slow, x)
    """)
    assert lines == ["did 0", "did 1", "did 2"]


def test_callbacks_are_called_then(run):
    lines = run("""
        executor = fiber.Executor(1)
        executor.submit(slow, 1).add_done_callback(lambda f: say(f"told {f.result()}"))
    """)
    assert sorted(lines) == ["did 1", "told 1"]


def test_so_are_those_of_executors_without_a_reference(run):
    lines = run("""
        def begin():
            fiber.Executor(1).submit(slow, 1)
            executor = fiber.Executor(1)
            executor.submit(slow, 2)
            executor.shutdown(wait=False)
        begin()
    """)
    assert sorted(lines) == ["did 1", "did 2"]


def test_a_worker_that_is_killed_meanwhile_is_replaced(run):
    lines = run("""
        executor = fiber.Executor(1)
        executor.submit(slow, 1)
        executor.submit(die_once, sys.argv[1])
    """)
    assert lines == ["did 1", "survived"]


def test_nothing_is_taken_by_then(run):
    lines = run("""
        executor = fiber.Executor(1)
        def go_on(future):
            try:
                executor.submit(slow, 2)
            except RuntimeError as error:
                print(error, flush=True)
        executor.submit(slow, 1).add_done_callback(go_on)
    """)
    assert sorted(lines) == ["cannot schedule new futures after interpreter shutdown", "did 1"]


def test_the_exit_of_a_worker_waits_for_its_own_executor(run):
    lines = run("""
        process = fiber.Process(target=begin)
        process.start()
        process.join()
        print(process.exitcode)
    """)
    assert lines == ["did 1", "0"]


def test_cancelled_futures_are_not_waited_for(run):
    lines = run("""
        executor = fiber.Executor(1)
        futures = [executor.submit(slow, x) for x in range(200)]
        executor.shutdown(wait=False, cancel_futures=True)
        print(sum(future.cancelled() for future in futures) > 190)
    """)
    assert lines[0] == "True"
    assert len(lines) < 5
