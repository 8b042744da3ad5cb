"""Programs that are the first process of a container, and so of a PID namespace."""

import os
import subprocess
import sys

import psutil
import pytest

import owners

PROGRAM = """
import os, signal
{before}
import fiber

fiber.Process(target=print, args=("up",)).start()
while True:
    signal.pause()
"""


@pytest.fixture
def start(tmp_path):
    """Starts a program in a namespace of its own, and waits until it has a child."""
    owners.need()
    started = []

    def start(before):
        argv = [*owners.UNSHARE, sys.executable, "-c", PROGRAM.format(before=before)]
        # what a program leaves that is killed
        environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        started.append(subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "up\n"
        (first,) = psutil.Process(started[-1].pid).children()
        return started[-1], first

    yield start
    for process in started:
        process.kill()
        process.stdout.read()
        process.wait()
        process.stdout.close()


def test_sigterm_ends_it(start):
    process, first = start("")
    first.terminate()
    assert process.wait(60) == 143


def test_a_handler_of_its_own_is_left_alone(start):
    # no print: it may come in the midst of another
    process, first = start("signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'heard\\n'))")
    first.terminate()
    assert process.stdout.readline() == "heard\n"
    first.terminate()
    assert process.stdout.readline() == "heard\n", "it has ended"
