"""The first process of a container, run on this host as a container's Python runs it."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys

import pytest

from fiber.backend_parts import first

PYTHON = (sys.executable, "-I", "-S", "-c")
LOADER = "stream=open(0,'rb',closefd=False);exec(stream.read(%d))"


@pytest.fixture
def start(tmp_path):
    """Starts a program under the first process; its end is written below a folder of the test."""
    end = tmp_path / "end"
    source = first.text().encode()
    started = []

    def start(*argv, private=None, given="source"):
        length = -1 if private is None else len(private)
        process = subprocess.Popen(
            [*PYTHON, LOADER % len(source), str(end), given, str(length), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        process.stdin.write(source + (private or b""))
        process.stdin.flush()
        return process

    yield start, end
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            # what was written and not read is no matter
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def ended(process, end):
    out, err = process.stdout.read(), process.stderr.read()
    process.wait()
    word, _ = first.last_word(end.read_text() if end.exists() else "")
    return process.returncode, word, out, err


def sh(script):
    return ("/bin/sh", "-c", script)


@pytest.mark.parametrize("code", [0, 1, 127, 137, 255])
def test_an_exit_code_is_passed_on_and_written_down(start, code):
    begin, end = start

    assert ended(begin(*sh(f"exit {code}")), end)[:2] == (code, f"exit {code}")


def test_a_signal_is_distinguished_from_a_code(start):
    begin, end = start

    assert ended(begin(*sh("kill -KILL $$")), end)[:2] == (137, "signal 9")


def test_a_program_that_is_not_there_is_named(start):
    begin, end = start

    code, word, _, err = ended(begin("/no/such/program"), end)

    assert code == 127
    assert word.startswith("start ")
    assert "/no/such/program" in word
    assert b"/no/such/program" in err


def test_signals_are_passed_on(start):
    begin, end = start
    process = begin(*sh("trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"))
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGTERM)

    assert ended(process, end)[:2] == (9, "exit 9")


@pytest.mark.parametrize("private", [b"", b"\x00\xff" * 100_000])
def test_private_bytes_come_by_a_descriptor(start, private):
    begin, end = start
    code = (
        "import os, hashlib; fd = int(os.environ['FIBER_BOOTSTRAP'].partition(':')[2]); "
        "print(hashlib.sha256(open(fd, 'rb').read()).hexdigest())"
    )

    *_, out, _ = ended(begin(sys.executable, "-c", code, private=private), end)

    assert out.decode().strip() == hashlib.sha256(private).hexdigest()


def test_a_program_has_no_input(start):
    begin, end = start

    assert ended(begin("/bin/cat"), end)[:3] == (0, "exit 0", b"")


def test_a_detached_program_outlives_its_starter(start):
    begin, end = start
    process = begin(*sh("trap 'exit 9' TERM; echo ready; sleep 0.3; exit 4"))
    process.stdout.readline()

    process.stdin.close()

    assert ended(process, end)[:2] == (4, "exit 4")


@pytest.mark.parametrize(
    "trap, grace, how",
    [("exit 9", 60, (9, "exit 9")), ("", 0.1, (137, "signal 9"))],
    ids=["at SIGTERM", "at SIGKILL"],
)
def test_an_attached_program_ends_with_its_starter(start, trap, grace, how):
    begin, end = start
    process = begin(
        *sh(f"trap {trap!r} TERM; echo ready; while :; do sleep 0.05; done"), given=f"bond:{grace}"
    )
    process.stdout.readline()

    process.stdin.close()

    code, word, _, err = ended(process, end)
    assert (code, word) == how
    assert b"is gone" in err


def test_a_program_may_read_our_input_and_leave_words_of_its_own(tmp_path):
    end = tmp_path / "end"
    script = sh(f"read line; echo got $line; echo 42 > {end}; exit 3")

    done = subprocess.run(
        [*PYTHON, first.text(), end, "program", "-1", *script],
        input=b"x\n",
        stdout=subprocess.PIPE,
        check=False,
    )

    assert (done.returncode, done.stdout) == (3, b"got x\n")
    assert first.last_word(end.read_text()) == ("exit 3", "42")


def test_where_the_first_process_was_killed_the_programs_words_are_all_there_is():
    assert first.last_word("42\n") == ("", "42")


def test_it_imports_nothing_but_the_standard_library():
    code = f"import sys; sys.argv = ['x']; exec({first.text()!r}, {{'__name__': 'first'}})"

    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env=dict(os.environ))
