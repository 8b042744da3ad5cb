"""A thread that accepts connections: each is served, and none after its end."""

import contextlib
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from fiber._wire.accept_thread import AcceptThread, private_listener


@pytest.fixture
def path():
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fa-") as folder:
        yield f"{folder}/door"


def call(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return connection.recv(100)


def test_each_connection_is_served_until_it_is_closed(path):
    def serve(connection):
        with connection:
            connection.sendall(b"hello")

    accepting = AcceptThread(private_listener(path), serve, name="test-door")
    assert [call(path) for _ in range(3)] == [b"hello"] * 3

    accepting.close()
    accepting.close()

    with pytest.raises(ConnectionRefusedError):
        call(path)
    assert not [one for one in threading.enumerate() if one.name == "test-door"]


def test_many_are_served_at_once_where_one_may_take_long(path):
    both = threading.Barrier(2)

    def serve(connection):
        with connection:
            both.wait(20)
            connection.sendall(b"both are here")

    with contextlib.closing(
        AcceptThread(private_listener(path), serve, name="test-door", thread_per_connection=True)
    ):
        first = threading.Thread(target=call, args=(path,))
        first.start()
        assert call(path) == b"both are here"
        first.join(20)


def test_it_may_be_closed_by_what_it_serves(path):
    accepting = None
    closed = threading.Event()

    def serve(connection):
        connection.close()
        accepting.close()
        closed.set()

    listener = private_listener(path)
    accepting = AcceptThread(listener, serve, name="test-door")
    call(path)

    assert closed.wait(20)
    assert listener.fileno() == -1


def test_a_private_listener_is_its_users_alone(path):
    with private_listener(path):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        with pytest.raises(OSError):
            private_listener(path)
