"""Quoting for shells: arguments, variables and folders arrive unchanged."""

import shlex
import subprocess
import sys
from unittest.mock import MagicMock

import pytest

from fiber_ssh import execution
from fiber_ssh.exec_channel import CommandResult, stderr_text
from fiber_ssh.hosts import Host
from fiber_ssh.shell_command import MARKER, command_line, environment_file, python_command

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


def test_where_the_program_was_not_run_stderr_is_the_shells():
    assert stderr_text(b"quota exceeded\n") == "quota exceeded"
    assert stderr_text(b"quota is 90 %\n" + MARKER) == ""


def test_words_that_no_shell_can_pass_on_are_refused():
    with pytest.raises(ValueError, match="null character"):
        command_line(["a\0b"])
    with pytest.raises(ValueError, match="no name of an environment variable"):
        environment_file("/f", {"A B": "x"})


def test_what_fiber_exec_sets_on_a_host_is_in_no_command_line_there(monkeypatch, tmp_path):
    def cat(_, words, *, stdin, **__):
        subprocess.run(words, input=stdin, check=True)
        return CommandResult(0, "", "")

    folder = tmp_path / "a dir"
    folder.mkdir()
    channel = MagicMock(recv=lambda _: b"", recv_stderr=lambda _: b"", recv_exit_status=int)
    monkeypatch.setattr(execution, "run", cat, raising=False)
    monkeypatch.setattr(execution, "open_session", lambda *_: channel)
    host = Host(name="alpha", env={"A": "it's s3cret $B\nC"}, directory=str(folder))
    info = MagicMock(executable="/opt/x y/python", root=str(folder))
    words = ["sh", "-c", 'printf "%s|%s|%s" "$A" "$PWD" "${PATH%%:*}"']
    execution.execute(MagicMock(host=host, info=info), words, timeout=60)

    (line,) = channel.exec_command.call_args.args
    assert "s3cret" not in line
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
    assert output_of(line) == f"it's s3cret $B\nC|{folder}|/opt/x y"
    assert not list(folder.iterdir())
