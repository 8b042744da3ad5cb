"""The command as users run it: a process of its own, on the backend that this machine has."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import waiting
from commands import ran
from fiber.cli.main import cli
from fiber.testing import programs
from supervised import until_gone

COMMAND = (sys.executable, "-m", "fiber.cli.main")
PATIENCE = 40.0


def fiber(*words):
    return ran([*COMMAND, *words])


def lines(*words):
    done = fiber(*words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def created(*words):
    """Start a job; its id."""
    (line,) = lines("run", *words)
    assert line.startswith("Created job: ")
    return line.removeprefix("Created job: ")


def inside(*words):
    """The same in this process, for steps that a test does not check closely."""
    done = CliRunner().invoke(cli, words, prog_name="fiber")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def jobs(*words):
    return json.loads(inside("ps", "--json", *words))


@pytest.fixture(autouse=True)
def collected(run_root):
    """Nothing that a test started is left, and no run either."""
    yield

    def left():
        return list((run_root / "fiber").iterdir())

    if left():
        for job in jobs():
            # one that was still listed may have ended by now; what is left is seen below
            CliRunner().invoke(cli, ["kill", "--now", job["job"]], prog_name="fiber")
        inside("gc")
    # the supervisor of a command that was killed ends its run, and tells nobody
    assert waiting.left(left, PATIENCE) == []


class TestAttached:
    def test_output_passes_as_it_was_written_and_the_exit_code_too(self):
        argv = programs.print_text(b"to stdout\nno newline", "to stdérr\n".encode())
        done = subprocess.run(
            [*COMMAND, "run", "-a", *argv], capture_output=True, timeout=PATIENCE, check=False
        )

        assert done.stdout == b"to stdout\nno newline"
        assert done.stderr == "to stdérr\n".encode()
        assert done.returncode == 0
        assert fiber("run", "-a", *programs.exit_with(7)).returncode == 7

    def test_a_program_that_cannot_be_run_is_answered_as_shells_do(self, tmp_path):
        (tmp_path / "text").write_text("x")

        for words in ("run", "-a"), ("run",):
            done = fiber(*words, "no-such-program")

            assert (done.returncode, done.stdout) == (127, "")
            assert done.stderr == (
                "fiber: cannot run 'no-such-program': No such file or directory\n"
            )
        refused = fiber("run", "-a", "./text")
        assert refused.returncode == 126
        assert "Permission denied" in refused.stderr

    def test_the_job_ends_with_a_command_that_is_killed(self):
        command = [*COMMAND, "run", "-a", *programs.with_child()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert any(line == "ready\n" for line in process.stdout)
            ((pid,),) = [[p["pid"] for p in job["processes"]] for job in jobs()]
            process.kill()

            assert process.wait(PATIENCE) == -signal.SIGKILL
            until_gone(pid)

    def test_ctrl_c_at_a_terminal_asks_before_it_ends_the_job(self):
        ours, theirs = pty.openpty()
        argv = [*COMMAND, "run", "-a", *programs.exit_on_sigterm(0)]
        # Python 3.10 has no way to give a child its terminal without running code in it
        start = f"import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv({argv[0]!r}, {argv!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        with process, os.fdopen(ours, "r+b", buffering=0) as terminal:
            assert read_until(terminal, b"ready")
            terminal.write(b"\x03")
            assert read_until(terminal, b"[y/N] ")
            terminal.write(b"n\n")
            assert read_until(terminal, b"goes on")
            terminal.write(b"\x03")
            assert read_until(terminal, b"[y/N] ")
            terminal.write(b"y\n")

            assert process.wait(PATIENCE) == 130


def read_until(stream, wanted):
    text = b""
    while wanted not in text:
        data = os.read(stream.fileno(), 1024)
        if not data:
            return False
        text += data
    return True


class TestDetached:
    def test_a_job_is_started_listed_shown_ended_and_collected(self):
        code = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
        code += (
            "signal.alarm(60); print('one', flush=True); signal.sigwait([signal.SIGTERM]); exit(3)"
        )
        # it holds none of our streams: with one held, this would not return before the job ends
        job = created("--name", "train", sys.executable, "-u", "-c", code)

        (listed,) = json.loads(fiber("ps", "--json").stdout)
        assert (listed["job"], listed["name"], listed["state"]) == (job, "train", "running")
        assert listed["argv"][-1] == code
        assert listed["submitted"] > 1e9
        following = [*COMMAND, "logs", "-f", job]
        with subprocess.Popen(following, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "one\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130

        assert lines("kill", job[:5]) == [f"Ended job: {job}"]

        assert jobs() == []
        (ended,) = jobs("--all")
        assert (ended["state"], ended["reason"], ended["exit_code"]) == ("failed", "EXIT(3)", 3)
        assert lines("logs", "train") == ["one"]
        assert lines("gc") == [f"Removed run: {listed['run']} (its jobs have ended)"]
        assert jobs("--all") == []

    def test_all_its_lines_are_kept_and_a_reader_that_goes_away_is_no_traceback(self):
        # more than a pipe holds
        job = created(*programs.print_lines(20_000))

        assert lines("logs", "-f", job) == [f"line {n}" for n in range(20_000)]
        assert lines("logs", "--tail", "1", job) == ["line 19999"]
        with subprocess.Popen(
            [*COMMAND, "logs", "-f", job], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""


def test_the_doctor_finds_nothing_wrong():
    done = fiber("doctor")

    assert done.returncode == 0, done.stdout
    assert all(line.startswith("ok ") for line in done.stdout.splitlines())
