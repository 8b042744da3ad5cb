"""What an agent asks of the system."""

import os
import socket
import subprocess
import sys

import pytest

from fiber_ssh.remote.kernel import bound_port

_TAKE = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
host, port = sys.argv[1], int(sys.argv[2])
taker = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    taker.setsockopt(socket.SOL_SOCKET, option, 1)
taker.bind((host, port))
taker.listen()
print("taken")
"""


class TestBoundPort:
    """The port of a job, between the agent's choice and the job's listening."""

    @pytest.fixture
    def bound(self):
        found, port = bound_port()
        with found:
            yield found, port

    def test_a_job_listens_there_with_the_socket_it_inherits(self, bound):
        listener, port = bound
        code = (
            "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.listen(); s.accept()"
        )
        number = listener.fileno()
        argv = [sys.executable, "-c", code, str(number)]
        with subprocess.Popen(argv, pass_fds=[number]) as job:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=30).close()
                except ConnectionRefusedError:
                    # not yet
                    assert job.poll() in (None, 0)
                else:
                    break
        assert job.returncode == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
    def test_no_other_user_can_take_it(self, bound, host):
        _, port = bound
        other = subprocess.run(
            [sys.executable, "-c", _TAKE, host, str(port)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert other.stdout == ""
        assert "Address already in use" in other.stderr
