"""Writing to a connection that was cut."""

import queue

import paramiko
import pytest

from fiber_ssh import agent_link


class Cut:
    """A channel whose connection is gone, with paramiko's exceptions."""

    def __init__(self, error):
        self.error = error

    def sendall(self, data):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError("Socket is closed"), EOFError(), paramiko.SSHException()]
)
def test_a_writer_ends_and_leaves_the_error_to_the_reader(error):
    out = queue.SimpleQueue()
    for _ in range(2):
        out.put(b"data")

    agent_link._write(Cut(error), out)

    assert out.qsize() == 1
