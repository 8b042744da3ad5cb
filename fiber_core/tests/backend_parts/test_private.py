"""Instructions reach a program in several ways, and leave nothing behind."""

import base64
import os
import subprocess
import sys

import pytest

from fiber.backend_parts.private import KEY_BYTES, VARIABLE, read_private, seal
from fiber.exceptions import StartError

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
