"""Podman's socket, where it is installed: processes run, ends are known, nothing is left."""

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
def engine(podman):
    """What programs of these tests run on."""
    return podman


@pytest.fixture
def run(run_program):
    """Runner of programs; returns their output."""

    def run_text(text):
        done = run_program(text)
        # shown where the test fails
        sys.stderr.write(done.stderr)
        assert done.returncode == 0
        return done.stdout

    return run_text


def test_ends_of_processes_are_distinguished(run):
    assert run(ENDS).splitlines() == ["hello", "[7, -9, 0]"]


def test_a_program_that_ends_while_workers_start_leaves_no_container(run):
    for _ in range(3):
        assert run(SHORT) == "done\n"
