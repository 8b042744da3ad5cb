"""The tiny programs work as named, so that a failing kit points at the backend."""

import hashlib
import json
import os
import subprocess
import tempfile

from fiber.testing import programs

HARD = ["", "two words", "it's", 'say "no"', "$HOME\n", "☃"]


def run(argv, **arguments):
    return subprocess.run(argv, capture_output=True, check=False, timeout=30, **arguments)


def run_with_private(argv, private, **environ):
    with tempfile.TemporaryFile() as file:
        file.write(private)
        file.seek(0)
        environ = {**os.environ, "FIBER_BOOTSTRAP": f"fd:{file.fileno()}", **environ}
        return run(argv, env=environ, pass_fds=[file.fileno()])


def test_arguments():
    assert json.loads(run(programs.echo_args(*HARD)).stdout) == HARD
    argv = programs.expect_args(*HARD)
    assert run(argv).returncode == 0
    assert run((*argv[:-1], "☂")).returncode == 1
    assert run(argv[:-1]).returncode == 1


def test_environment_and_directory(tmp_path):
    argv = programs.expect_env({"A": "x\ny", "B": None})
    assert run(argv, env={"A": "x\ny"}).returncode == 0
    assert run(argv, env={"A": "x", "B": "z"}).returncode == 1
    assert run(programs.expect_cwd(str(tmp_path)), cwd=tmp_path).returncode == 0
    assert run(programs.expect_cwd(str(tmp_path)), cwd="/").returncode == 1


def test_private_bytes():
    digest = hashlib.sha256(b"secret").hexdigest().encode()

    assert run_with_private(programs.read_private(), b"secret").stdout.strip() == digest
    assert run_with_private(programs.expect_private(b"secret"), b"secret").returncode == 0
    assert run_with_private(programs.expect_private(b"secret"), b"other").returncode == 2
    assert (
        run_with_private(programs.expect_private(b"secret"), b"secret", X="secret").returncode == 3
    )
    assert b"none of fd" in run(programs.read_private(), env={}).stderr


def test_files(tmp_path):
    file = str(tmp_path / "x")

    assert run(programs.write_file(file, "a\n")).returncode == 0
    assert run(programs.expect_file(file, "a\n")).returncode == 0
    assert run(programs.expect_file(file, "b\n")).returncode == 1


def test_an_entry_is_called_with_the_private_bytes_and_the_index(monkeypatch):
    with tempfile.TemporaryFile() as file:
        file.write(b"\x05\x06")
        file.seek(0)
        monkeypatch.setenv("FIBER_BOOTSTRAP", f"fd:{os.dup(file.fileno())}")

        assert programs.main("fiber.testing.programs:exit_code_of", 1) == 6
    assert "FIBER_BOOTSTRAP" not in os.environ
