"""Port forwarding: members reach a server on loopback in one of them; and the threads that accept."""

import contextlib
import errno
import itertools
import multiprocessing.connection
import os
import socket
import stat
import sys
import threading
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import psutil
import pytest

import require
from fiber._ring.forwarding import (
    AcceptThread,
    Forwarder,
    Gateway,
    PipeServer,
    loopback_listener,
    private_listener,
)
from fiber._ring.model import RingTiming
from fiber.experimental import Ring
from tunnel_world import Echo
from wire_world import in_thread

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(120)]

#: an address of this host at which a socket of 127.0.0.1 does not listen, and one of all does
OTHER_ADDRESS = "127.0.0.2"


@pytest.fixture
def echo():
    """A framework's server that echoes what it gets."""
    with contextlib.closing(Echo()) as made:
        yield made


@pytest.fixture
def pipes(echo):
    """Pipes to that server."""

    def serve(name, pipe):
        assert name == "echo"
        host.carry_to(lambda: echo.port, pipe)

    with contextlib.closing(PipeServer(serve, RingTiming())) as host:
        yield host.pipes


@pytest.fixture
def forwarder(pipes):
    with contextlib.closing(Forwarder(lambda: pipes.open("echo"), RingTiming())) as made:
        yield made


def connected(forwarder):
    made = socket.create_connection(("127.0.0.1", forwarder.port))
    made.settimeout(30)
    return made


def read(connection, size):
    found = bytearray()
    while len(found) < size:
        data = connection.recv(1 << 16)
        assert data, f"it hung up after {len(found)} bytes"
        found += data
    return bytes(found)


def test_what_clients_send_reaches_the_server_and_its_answers_come_back_in_order(forwarder):
    sent = os.urandom(3 << 20)

    with connected(forwarder) as one, connected(forwarder) as other:
        written = in_thread(one.sendall, sent)
        other.sendall(b"other")

        assert read(other, 5) == b"other"
        assert read(one, len(sent)) == sent
        written()


def test_the_server_is_notified_when_a_client_hangs_up(echo, forwarder):
    with connected(forwarder) as connection:
        connection.sendall(b"x")
        read(connection, 1)

    # waits until it has ended all that it talked to
    echo.close()
    assert [one.fileno() for one in echo.talked] == [-1]


@pytest.mark.parametrize("which", ["server", "forwarder"])
def test_a_client_is_notified_when_the_server_hangs_up_or_the_forwarder_ends(
    echo, forwarder, which
):
    with connected(forwarder) as connection:
        connection.sendall(b"x")
        read(connection, 1)
        if which == "server":
            echo.talked[0].shutdown(socket.SHUT_RDWR)
        else:
            forwarder.close()

        assert connection.recv(1) == b""
    if which == "forwarder":
        with pytest.raises(ConnectionRefusedError):
            connected(forwarder)


def test_clients_are_sent_away_where_the_server_cannot_be_reached():
    def gone():
        raise EOFError

    with contextlib.closing(Forwarder(gone, RingTiming())) as made, connected(made) as connection:
        assert connection.recv(1) == b""


def test_a_server_may_listen_later_than_clients_come():
    with loopback_listener() as reserved:
        port = reserved.getsockname()[1]
    server = PipeServer(lambda _, pipe: server.carry_to(lambda: port, pipe), RingTiming())
    forwarder = Forwarder(lambda: server.pipes.open(""), RingTiming())
    with connected(forwarder) as early:
        assert early.recv(1) == b""
    with socket.create_server(("127.0.0.1", port)) as listener, connected(forwarder) as client:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"here")
            assert read(client, 4) == b"here"
    forwarder.close()
    server.close()


def test_no_other_host_on_the_network_reaches_the_port(forwarder):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((OTHER_ADDRESS, forwarder.port))
    listening = [
        one.laddr.ip
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == forwarder.port
    ]
    assert listening == ["127.0.0.1"]


def test_other_users_of_the_host_are_sent_away(echo, forwarder):
    require.need("root", None if os.geteuid() == 0 else "only root can be another user")
    require.need("linux", None if sys.platform == "linux" else "the system tells no users")
    os.seteuid(65534)
    try:
        # the kernel notes who made it
        stranger = socket.socket()
    finally:
        os.seteuid(0)
    stranger.settimeout(30)

    with stranger:
        stranger.connect(("127.0.0.1", forwarder.port))
        assert stranger.recv(1) == b""
    assert echo.talked == []


@pytest.fixture
def gateway(pipes, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("g") / "socket")
    with contextlib.closing(Gateway(path, pipes, RingTiming())):
        yield path


def test_a_program_gets_the_service_that_it_names_and_may_forward_connections_in_its_turn(gateway):
    def connect():
        client = multiprocessing.connection.Client(gateway, "AF_UNIX")
        client.send_bytes(b"echo")
        return client

    with (
        contextlib.closing(Forwarder(connect, RingTiming())) as made,
        connected(made) as connection,
    ):
        connection.sendall(b"hello")
        assert read(connection, 5) == b"hello"


def test_every_member_of_a_ring_reaches_a_server_of_whoever_gave_it_the_pipes(pipes):
    def ask(rank, size):
        with pipes.open("echo") as pipe:
            pipe.send_bytes(b"%d" % rank)
            return pipe.recv_bytes()

    assert Ring(2, ask).run() == [b"0", b"1"]


# A thread that accepts connections: each is served, and none after its end.


@pytest.fixture
def path(folder):
    return f"{folder}/listener"


def call(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return connection.recv(100)


def say_hello(connection):
    with connection:
        connection.sendall(b"hello")


def test_each_connection_is_served_until_it_is_closed(path):
    accepting = AcceptThread(private_listener(path), say_hello, name="test-accept")
    assert [call(path) for _ in range(3)] == [b"hello"] * 3

    accepting.close()
    accepting.close()

    with pytest.raises(ConnectionRefusedError):
        call(path)
    assert not [one for one in threading.enumerate() if one.name == "test-accept"]


def test_many_are_served_at_once_where_one_may_take_long(path):
    both = threading.Barrier(2)

    def serve(connection):
        with connection:
            both.wait(20)
            connection.sendall(b"both are here")

    with contextlib.closing(
        AcceptThread(private_listener(path), serve, name="test-accept", thread_per_connection=True)
    ):
        first = in_thread(call, path)
        assert call(path) == first() == b"both are here"


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.EPERM])
def test_it_goes_on_after_the_system_refused_one_and_where_there_is_no_thread(
    path, monkeypatch, refusal
):
    listener = Mock(wraps=private_listener(path))
    refused = OSError(refusal, "refused")
    listener.accept.side_effect = itertools.chain([refused], itertools.repeat(DEFAULT))
    with contextlib.closing(
        AcceptThread(
            listener, say_hello, name="test-accept", thread_per_connection=True, pause=0.01
        )
    ):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
            assert call(path) == b""
        assert call(path) == b"hello"


def test_it_may_be_closed_by_what_it_serves(path):
    accepting = None
    closed = threading.Event()

    def serve(connection):
        connection.close()
        accepting.close()
        closed.set()

    listener = private_listener(path)
    accepting = AcceptThread(listener, serve, name="test-accept")
    call(path)

    assert closed.wait(20)
    assert listener.fileno() == -1


def test_a_private_listener_is_its_users_alone(path):
    with private_listener(path):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        with pytest.raises(OSError):
            private_listener(path)
