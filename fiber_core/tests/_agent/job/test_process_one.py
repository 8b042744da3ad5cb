"""A supervisor as process 1 of a container, where signals mean something else and orphans come."""

import os
import signal
import subprocess
import sys

import pytest

import fiber
import owners
from children import start
from commands import ran
from fiber._agent.job.server import REFUSED
from fiber.backend_parts.private import VARIABLE


def wait_for_ever(queue):
    queue.put((os.getpid(), os.getppid()))
    signal.pause()


def leave_orphans(queue):
    script = "sleep 600 >/dev/null 2>&1 & sleep 600 >/dev/null 2>&1 & echo left"
    done = ran(["sh", "-c", script], check=True)
    queue.put(done.stdout)
    sys.exit(9)


@pytest.fixture
def container(remote_host, tmp_path):
    owners.need()
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {" ".join(owners.UNSHARE)} {sys.executable} "$@"\n')
    python.chmod(0o755)
    remote_host.use(far_python=str(python))


@pytest.mark.usefixtures("container")
class TestProcessOne:
    def test_orphans_hold_up_no_end_and_exit_codes_are_exact(self):
        queue = fiber.Queue()
        process = start(leave_orphans, queue)
        assert queue.get(timeout=60) == "left\n"
        process.join(60)
        assert process.exitcode == 9

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT"])
    def test_signals_are_carried_out(self, name):
        signum = getattr(signal, name)
        queue = fiber.Queue()
        process = start(wait_for_ever, queue)
        pid, parent = queue.get(timeout=60)
        assert (pid, parent) == (process.pid, 1)
        process._popen.signal(0, signum)
        process.join(60)
        assert process.exitcode == (1 if signum == signal.SIGINT else -signum)


@pytest.mark.parametrize("private", [b"", b"{}", b"no json", b'{"instructions": 3}'])
def test_a_supervisor_that_cannot_read_its_configuration_reports_it(private, tmp_path):
    path = tmp_path / "private"
    path.write_bytes(private)
    done = subprocess.run(
        [sys.executable, "-m", "fiber._agent.job"],
        env={**os.environ, VARIABLE: f"file:{path}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == REFUSED
    assert done.stderr.startswith(b"fiber: the instructions of this job make no sense")
