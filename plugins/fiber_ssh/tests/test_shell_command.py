"""Quoting for shells: arguments, variables and folders arrive unchanged."""

import shlex
import subprocess
import sys

import pytest

from fiber_ssh.exec_channel import stderr_text
from fiber_ssh.shell_command import MARKER, command_line, python_command

WORDS = [
    "",
    " ",
    "it's",
    '"',
    "$HOME `id` $(id)",
    "*",
    "; & | < >",
    "a\nb",
    "\\",
    "ünï ☃",
    "-n",
    "~",
]
SAY = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"


def output_of(line, shell="sh"):
    return subprocess.run([shell, "-c", line], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_arguments_arrive_as_they_are(shell):
    line = command_line([sys.executable, "-I", "-c", SAY, *WORDS])

    assert output_of(line, shell).split("\0") == WORDS


def test_environment_directory_and_path_are_set(tmp_path):
    (tmp_path / "a dir").mkdir()
    line = command_line(
        ["sh", "-c", 'printf "%s|%s|%s" "$A" "$PWD" "${PATH%%:*}"'],
        env={"A": "it's $B"},
        directory=str(tmp_path / "a dir"),
        path="/opt/x y",
    )

    assert output_of(line) == f"it's $B|{tmp_path}/a dir|/opt/x y"


def test_a_program_is_given_to_python_in_one_safe_word():
    line = python_command(sys.executable, "print('it\\'s', \"!$x\")\nprint(2)\n")

    assert output_of(line, "bash") == "it's !$x\n2\n"
    assert "\n" not in line
    assert "!" not in line


def test_the_home_of_a_python_is_left_to_the_shell():
    def command(python):
        return shlex.split(python_command(python, ""))[-1]

    assert "; exec ~/venv/bin/python -c " in command("~/venv/bin/python")
    assert "; exec '/my python' -c " in command("/my python")


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("before", ["", "echo noise; echo noise >&2; ", "set -xv; "])
def test_output_of_a_program_is_separated_from_that_of_its_shell(shell, before):
    code = "import sys; print('answer'); print('words', file=sys.stderr); sys.exit(3)"
    line = before + command_line([sys.executable, "-I", "-c", code], marked=True)

    done = subprocess.run([shell, "-c", line], capture_output=True, check=False)

    assert done.returncode == 3
    assert done.stdout.partition(MARKER)[2] == b"answer\n"
    assert stderr_text(done.stderr) == "words"


def test_where_the_program_was_not_run_stderr_is_the_shells():
    assert stderr_text(b"quota exceeded\n") == "quota exceeded"
    assert stderr_text(b"quota is 90 %\n" + MARKER) == ""


def test_words_that_no_shell_can_pass_on_are_refused():
    with pytest.raises(ValueError, match="null character"):
        command_line(["a\0b"])
    with pytest.raises(ValueError, match="no name of an environment variable"):
        command_line(["a"], env={"A B": "x"})
