"""What is said to a shell comes out of it as it went in."""

import subprocess
import sys

import pytest

from fiber_ssh.command import command_line, python_line

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


def said(line, shell="sh"):
    return subprocess.run([shell, "-c", line], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_arguments_arrive_as_they_are(shell):
    line = command_line([sys.executable, "-I", "-c", SAY, *WORDS])

    assert said(line, shell).split("\0") == WORDS


def test_environment_directory_and_path_are_set(tmp_path):
    (tmp_path / "a dir").mkdir()
    line = command_line(
        ["sh", "-c", 'printf "%s|%s|%s" "$A" "$PWD" "${PATH%%:*}"'],
        env={"A": "it's $B"},
        directory=str(tmp_path / "a dir"),
        path="/opt/x y",
    )

    assert said(line) == f"it's $B|{tmp_path}/a dir|/opt/x y"


def test_a_program_is_given_to_python_in_one_safe_word():
    line = python_line(sys.executable, "print('it\\'s', \"!$x\")\nprint(2)\n")

    assert said(line, "bash") == "it's !$x\n2\n"
    assert "\n" not in line
    assert "!" not in line


def test_the_home_of_a_python_is_left_to_the_shell():
    assert python_line("~/venv/bin/python", "").startswith("exec ~/venv/bin/python -c ")
    assert python_line("/my python", "").startswith("exec '/my python' -c ")


def test_what_no_shell_can_be_told_is_refused():
    with pytest.raises(ValueError, match="null character"):
        command_line(["a\0b"])
    with pytest.raises(ValueError, match="no name of an environment variable"):
        command_line(["a"], env={"A B": "x"})
