"""Podman's socket, where it is installed: processes run, ends are known, nothing is left."""

import os
import subprocess
import sys

import pytest

from podmand import podman

__all__ = ["podman"]

pytestmark = pytest.mark.timeout(600)

ENDS = """
import os, signal, sys, fiber

def die(number):
    os.kill(os.getpid(), number)

if __name__ == "__main__":
    ends = [(sys.exit, (7,)), (die, (signal.SIGKILL,)), (print, ("hello",))]
    processes = [fiber.Process(target=target, args=args) for target, args in ends]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""

#: ends while workers are made, are started, and run
SHORT = """
import fiber

if __name__ == "__main__":
    with fiber.Pool(6) as pool:
        assert pool.apply(abs, (-1,)) == 1
    print("done")
"""


@pytest.fixture
def environ(podman):
    return {
        **os.environ,
        "FIBER_BACKEND": "docker",
        "FIBER_IMAGE": podman.image,
        "DOCKER_HOST": podman.url,
    }


@pytest.fixture
def run(podman, environ, tmp_path):
    """Runner of programs; returns their output."""

    def run_text(text):
        (tmp_path / "program.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        # shown where the test fails
        sys.stderr.write(done.stderr)
        assert done.returncode == 0
        # a program that ended has removed what it started
        assert podman.containers() == []
        return done.stdout

    return run_text


def test_ends_of_processes_are_distinguished(run):
    assert run(ENDS).splitlines() == ["hello", "[7, -9, 0]"]


def test_a_program_that_ends_while_workers_start_leaves_no_container(run):
    for _ in range(3):
        assert run(SHORT) == "done\n"
