"""What runs beside a program or before it: its first process, its private bytes, a bridge to it."""

import base64
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from fiber.backend_parts import first
from fiber.backend_parts.private import KEY_BYTES, VARIABLE, read_private, seal
from fiber.exceptions import StartError

# The first process of a container, run on this host as a container's Python runs it.


PYTHON = (sys.executable, "-I", "-S", "-c")
LOADER = "stream=open(0,'rb',closefd=False);exec(stream.read(%d))"


@pytest.fixture
def end(tmp_path):
    """Where the end of a program is written."""
    return tmp_path / "end"


@pytest.fixture
def start(end):
    """Starts a program under the first process."""
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

    yield start
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


@pytest.mark.parametrize(
    "script, code, word",
    [(f"exit {code}", code, f"exit {code}") for code in (0, 1, 127, 137, 255)]
    + [("kill -KILL $$", 137, "signal 9")],
)
def test_an_exit_code_is_passed_on_and_written_down_and_told_from_a_signal(
    start, end, script, code, word
):
    assert ended(start(*sh(script)), end)[:2] == (code, word)


@pytest.mark.parametrize("program, expected", [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_run_is_named(start, end, program, expected):
    code, word, _, err = ended(start(program), end)

    assert code == expected
    assert word.startswith("start ")
    assert program in word
    assert program in err.decode()


def test_signals_are_passed_on(start, end):
    process = start(*sh("trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"))
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGTERM)

    assert ended(process, end)[:2] == (9, "exit 9")


@pytest.mark.parametrize("private", [b"", b"\x00\xff" * 100_000])
def test_private_bytes_come_by_a_descriptor(start, end, private):
    code = (
        "import os, hashlib; fd = int(os.environ['FIBER_BOOTSTRAP'].partition(':')[2]); "
        "print(hashlib.sha256(open(fd, 'rb').read()).hexdigest())"
    )

    *_, out, _ = ended(start(sys.executable, "-c", code, private=private), end)

    assert out.decode().strip() == hashlib.sha256(private).hexdigest()


def test_a_program_has_no_input(start, end):
    assert ended(start("/bin/cat"), end)[:3] == (0, "exit 0", b"")


def test_a_detached_program_outlives_its_starter(start, end):
    process = start(*sh("trap 'exit 9' TERM; echo ready; sleep 0.3; exit 4"))
    process.stdout.readline()

    process.stdin.close()

    assert ended(process, end)[:2] == (4, "exit 4")


@pytest.mark.parametrize(
    "trap, grace, how",
    [("exit 9", 60, (9, "exit 9")), ("", 0.1, (137, "signal 9"))],
    ids=["at SIGTERM", "at SIGKILL"],
)
def test_an_attached_program_ends_with_its_starter(start, end, trap, grace, how):
    process = start(
        *sh(f"trap {trap!r} TERM; echo ready; while :; do sleep 0.05; done"), given=f"bond:{grace}"
    )
    process.stdout.readline()

    process.stdin.close()

    code, word, _, err = ended(process, end)
    assert (code, word) == how
    assert b"is gone" in err


def test_a_program_may_read_our_input_and_leave_words_of_its_own(end):
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


# Instructions reach a program in several ways, and leave nothing behind.


ECHO = (
    "import os, sys; from fiber.backend_parts.private import read_private;"
    "sys.stdout.buffer.write(read_private()); sys.stdout.flush();"
    "print(); print('FIBER_BOOTSTRAP' in os.environ, repr(os.read(0, 99)))"
)


def read(where, data=b""):
    done = subprocess.run(
        [sys.executable, "-c", ECHO],
        input=data,
        env={**os.environ, VARIABLE: where},
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().split("\n")[:2]


def test_they_come_on_a_descriptor():
    reader, writer = os.pipe()
    os.write(writer, b"a secret")
    os.close(writer)
    assert read_private({VARIABLE: f"fd:{reader}"}) == b"a secret"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(reader)


def test_they_come_on_standard_input_which_is_empty_afterwards():
    assert read("stdin", b"a secret") == ["a secret", "False b''"]


def test_so_many_bytes_are_read_of_a_stream_that_stays_open():
    assert read("stdin:8", b"a secretthat goes on") == ["a secret", "False b''"]


def test_they_come_in_a_file_that_is_gone_afterwards(tmp_path):
    path = tmp_path / "instructions"
    path.write_bytes(b"a secret")
    environ = {VARIABLE: f"file:{path}", "OTHER": "1"}
    assert read_private(environ) == b"a secret"
    assert environ == {"OTHER": "1"}
    assert not path.exists()


def test_a_file_that_cannot_be_removed_is_read_all_the_same(tmp_path, monkeypatch):
    path = tmp_path / "instructions"
    path.write_bytes(b"a secret")

    def refuse(self):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    assert read_private({VARIABLE: f"file:{path}"}) == b"a secret"


@pytest.mark.parametrize("where", ["", "fd:", "fd:x", "stdin:x", "file:", "stdinx", "remote:3"])
def test_nonsense_is_refused_with_what_is_expected(where):
    with pytest.raises(StartError, match="expected fd:<number>, stdin"):
        read_private({VARIABLE: where})


@pytest.mark.parametrize("where", ["file:/nowhere/at/all", "fd:1000000"])
def test_a_missing_place_is_an_error(where):
    with pytest.raises(StartError, match="nothing can be read there"):
        read_private({VARIABLE: where})


def test_an_input_that_ends_early_is_an_error():
    with pytest.raises(subprocess.CalledProcessError) as caught:
        read("stdin:9", b"short")
    assert b"ended after 5 of 9 bytes" in caught.value.stderr


def test_they_come_sealed_and_need_the_key(tmp_path):
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_bytes(os.urandom(KEY_BYTES))
    other.write_bytes(os.urandom(KEY_BYTES))
    text = seal(b"a secret", key.read_bytes())

    assert b"secret" not in base64.urlsafe_b64decode(text)
    assert text != seal(b"a secret", key.read_bytes())
    assert read_private({VARIABLE: f"sealed:{key}:{text}"}) == b"a secret"
    assert key.exists(), "the other jobs of the run have the same"
    with pytest.raises(StartError, match="sealed with another key"):
        read_private({VARIABLE: f"sealed:{other}:{text}"})


def test_an_error_does_not_quote_the_sealed_bytes(tmp_path):
    with pytest.raises(StartError) as failure:
        read_private({VARIABLE: f"sealed:{tmp_path / 'none'}:Zm9v"})

    assert "Zm9v" not in str(failure.value)
    assert "No such file" in str(failure.value)


# A program beside a job is a stream into it.


MODULE = "fiber.backend_parts.bridge"


@pytest.fixture
def bridge():
    """Starts one; its process and the stream that its standard input and output are."""
    started = []

    def start(where):
        ours, its = socket.socketpair()
        with its:
            program = subprocess.Popen([sys.executable, "-m", MODULE, where], stdin=its, stdout=its)
        ours.settimeout(30)
        started.append((program, ours))
        return program, ours

    yield start
    for program, stream in started:
        stream.close()
        program.wait(30)


def test_bytes_go_both_ways_until_one_side_ends(bridge):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program, stream = bridge(f"streams:127.0.0.1:{listener.getsockname()[1]}")
        inside, _ = listener.accept()
    with inside:
        stream.sendall(b"there")
        assert inside.recv(10) == b"there"
        inside.sendall(b"back")
        assert stream.recv(10) == b"back"
    assert stream.recv(1) == b""
    assert program.wait(30) == 0


def test_where_may_be_a_path(bridge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("in")
        listener.listen()
        _, stream = bridge(str(tmp_path / "in"))
        inside, _ = listener.accept()
    with inside:
        stream.sendall(b"there")
        assert inside.recv(10) == b"there"
        stream.close()
        assert inside.recv(1) == b""


def test_without_a_listener_it_is_an_error(capfd, bridge):
    program, stream = bridge("streams:127.0.0.1:1")
    assert program.wait(30) == 1
    assert stream.recv(1) == b""
    assert "nothing listens for streams at 127.0.0.1:1" in capfd.readouterr().err
