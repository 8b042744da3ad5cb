"""A program beside a job is a stream into it."""

import socket
import subprocess
import sys

import pytest

MODULE = "fiber.backend_parts.bridge"


@pytest.fixture
def bridge():
    """Starts one; its process and the stream that its standard input and output are."""
    started = []

    def start(where):
        ours, its = socket.socketpair()
        with its:
            program = subprocess.Popen([sys.executable, "-m", MODULE, where], stdin=its, stdout=its)
        ours.settimeout(30)
        started.append((program, ours))
        return program, ours

    yield start
    for program, stream in started:
        stream.close()
        program.wait(30)


def test_bytes_go_both_ways_until_one_side_ends(bridge):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program, stream = bridge(f"streams:127.0.0.1:{listener.getsockname()[1]}")
        inside, _ = listener.accept()
    with inside:
        stream.sendall(b"there")
        assert inside.recv(10) == b"there"
        inside.sendall(b"back")
        assert stream.recv(10) == b"back"
    assert stream.recv(1) == b""
    assert program.wait(30) == 0


def test_where_may_be_a_path(bridge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("in")
        listener.listen()
        _, stream = bridge(str(tmp_path / "in"))
        inside, _ = listener.accept()
    with inside:
        stream.sendall(b"there")
        assert inside.recv(10) == b"there"
        stream.close()
        assert inside.recv(1) == b""


def test_without_a_listener_it_is_an_error(capfd, bridge):
    program, stream = bridge("streams:127.0.0.1:1")
    assert program.wait(30) == 1
    assert stream.recv(1) == b""
    assert "nothing listens for streams at 127.0.0.1:1" in capfd.readouterr().err
