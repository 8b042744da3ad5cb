"""Output of children reaches the parent's terminal; a runtime of its own for each test's capture."""

from __future__ import annotations

import subprocess
import sys
import textwrap

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


def test_what_the_parent_wrote_before_it_started_a_child_comes_before_what_that_writes(
    tmp_path, monkeypatch
):
    # into a pipe a program's output is buffered in blocks, unless this is set
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import fiber

            def square(number):
                print("worker", flush=True)
                return number * number

            if __name__ == "__main__":
                print("before")
                child = fiber.Process(target=print, args=("child",))
                child.start()
                child.join()
                print("between")
                with fiber.Pool(1) as pool:
                    pool.apply(square, (2,))
                pool.join()
                print("after")
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["before", "child", "between", "worker", "after"]
