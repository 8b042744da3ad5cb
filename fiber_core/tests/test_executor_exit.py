"""The end of a program that has futures pending: it waits for them, as with the standard library."""

import sys
import textwrap

import pytest

from commands import ran

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
    say("survived")

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    say("went on")
"""


@pytest.fixture
def run(tmp_path):
    def run(body):
        script = tmp_path / "program.py"
        indented = textwrap.indent(textwrap.dedent(body), "    ")
        script.write_text(f'{TASKS}\nif __name__ == "__main__":\n{indented}')
        done = ran([sys.executable, script, tmp_path / "flag"])
        assert not done.stderr, done.stderr
        assert done.returncode == 0
        return done.stdout.split("\n")[:-1]

    return run


@pytest.mark.parametrize(
    "body,lines",
    [
        pytest.param(
            """
            executor = fiber.Executor(1)
            def go_on(future):
                try:
                    executor.submit(slow, 2)
                except RuntimeError as error:
                    say(error)
                say(f"told {future.result()}")
            executor.submit(slow, 1).add_done_callback(go_on)
            executor.submit(die_once, sys.argv[1])
            """,
            [
                "cannot schedule new futures after interpreter shutdown",
                "did 1",
                "survived",
                "told 1",
            ],
            id="pending futures are waited for, callbacks called, killed workers replaced",
        ),
        pytest.param(
            """
            fiber.Executor(1).submit(slow, 1)
            executor = fiber.Executor(1)
            executor.submit(slow, 2)
            executor.shutdown(wait=False)
            del executor
            """,
            ["did 1", "did 2"],
            id="executors without a reference have ended their work",
        ),
    ],
)
def test_at_the_end_of_a_program(run, body, lines):
    assert sorted(run(body)) == lines


def test_cancelled_futures_are_not_waited_for(run):
    lines = run("""
        executor = fiber.Executor(1)
        futures = [executor.submit(wait_for, sys.argv[1]) for x in range(200)]
        executor.shutdown(wait=False, cancel_futures=True)
        say(sum(future.cancelled() for future in futures) > 190)
        open(sys.argv[1], "x").close()
    """)
    assert lines[0] == "True"
    assert len(lines) < 5
