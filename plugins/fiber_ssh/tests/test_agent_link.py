"""What is written to a connection that is cut meanwhile."""

import queue

import paramiko
import pytest

from fiber_ssh import link


class Cut:
    """A channel whose connection is gone, as the SDK tells it."""

    def __init__(self, error):
        self.error = error

    def sendall(self, data):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError("Socket is closed"), EOFError(), paramiko.SSHException()]
)
def test_whoever_writes_ends_and_leaves_it_to_the_reader(error):
    out = queue.SimpleQueue()
    for _ in range(2):
        out.put(b"told")

    link._write(Cut(error), out)

    assert out.qsize() == 1
