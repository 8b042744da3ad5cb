"""Streams into hollow pods: programs run by exec, and connections to ports."""

import contextlib
import fcntl
import io
import random
import secrets
import socket
import termios
import threading

import pytest

from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber_k8s.pod_exec import execute, exit_code_of
from fiber_k8s.port_forward import PortForwarder
from fiber_k8s.websocket_client import WebSocket
from k8s_site import set_durations
from k8s_world import recorded
from tunnel_world import Echo, TunnelWorld
from waiting import until


def statuses(name):
    """Messages of the status channel, by the recording's name."""
    found = {}
    for line in recorded(name):
        if line["type"] == "ws-recv" and line.get("channel") == 3:
            found[line["stream"]] = line["text"].encode()
    return found


@pytest.mark.parametrize(
    "stream,code",
    [
        ("exit 0, v5", 0),
        ("exit 3, v5", 3),
        ("exit 3, v4", 3),
        ("killed by SIGKILL", 137),
        ("exit 255", 255),
        ("command not found", 127),
        ("not executable", 126),
    ],
)
def test_exit_codes_are_those_of_shells(stream, code):
    found, words = exit_code_of(statuses("logs-exec/04-exec")[stream])
    assert found == code
    assert bool(words) is (code in (126, 127))


@pytest.mark.parametrize("said", [b"", b"[]", b"nonsense", b'{"status": "Failure"}'])
def test_nonsense_is_no_exit_code(said):
    with pytest.raises(BackendError):
        exit_code_of(said)


@pytest.fixture
def job(site, backend):
    return site.start_running(backend)


class TestPrograms:
    """Those of hollow pods write their arguments and their input."""

    def run(self, backend, job, argv, **more):
        heard = io.BytesIO()
        code = execute(
            backend._client, job.id, argv, write=lambda _, data: heard.write(data), **more
        )
        return code, heard.getvalue()

    def test_words_and_what_it_is_given_arrive_as_they_are(self, backend, job):
        argv = ["two words", "it's", '"$HOME"', "ü&=?%"]
        assert self.run(backend, job, argv) == (0, " ".join(argv).encode() + b"\n")
        data = bytes(range(256)) * 4000
        found = self.run(backend, job, ["cat"], stdin=io.BytesIO(data))
        assert found == (0, b"cat\n" + data)

    def test_balancers_are_shown_that_a_quiet_connection_is_in_use(self, backend, job, monkeypatch):
        pings = threading.Semaphore(0)

        def ping(websocket):
            pings.release()
            send_ping(websocket)

        send_ping = WebSocket.ping

        class Slow:
            pieces = iter([b"at last", b""])

            def read(self, _):
                assert all(pings.acquire(timeout=30) for _ in range(2))
                return next(self.pieces)

        monkeypatch.setattr(WebSocket, "ping", ping)
        set_durations(backend, ping=0.05)
        assert self.run(backend, job, ["cat"], stdin=Slow()) == (0, b"cat\nat last")


@pytest.fixture
def echo():
    with contextlib.closing(Echo()) as echo:
        yield echo


@pytest.fixture
def streams(backend):
    """Streams to ports; those of hollow pods are this host's."""
    with contextlib.closing(PortForwarder(backend._client)) as made:
        yield made


def talk(sock, data, size=1 << 16):
    """Send bytes; return the answer."""
    sender = threading.Thread(target=sock.sendall, args=(data,))
    sender.start()
    heard = bytearray()
    while len(heard) < len(data) and (piece := sock.recv(size)):
        heard += piece
    sender.join(30)
    return bytes(heard)


def test_bytes_go_both_ways_of_many_at_once(streams, job, echo):
    made = [streams.open(job.id, echo.port) for _ in range(8)]
    for number, stream in enumerate(made):
        stream.settimeout(30)
        stream.sendall(bytes([number]))
    assert [stream.recv(1) for stream in made] == [bytes([number]) for number in range(8)]
    data = random.Random(1).randbytes(5 * 2**20)
    assert talk(made[0], data) == data
    for stream in made:
        stream.close()


def test_without_a_listener_a_pod_or_a_cluster_there_is_none(site, streams, job):
    with streams.open(job.id, 1) as stream:
        stream.settimeout(30)
        assert stream.recv(1) == b""
    with pytest.raises(UnknownJobError, match="nobody"):
        streams.open("nobody", 1)
    with site.cluster.outage(), pytest.raises(BackendError):
        streams.open(job.id, 1)


def test_nothing_is_opened_once_it_is_closed(streams, job, echo):
    stream = streams.open(job.id, echo.port)
    streams.close()
    stream.settimeout(30)
    assert stream.recv(1) == b""
    stream.close()
    with pytest.raises(BackendUnavailableError):
        streams.open(job.id, echo.port)


@pytest.mark.parametrize(
    "frames",
    # an opcode and a length, then the channel: its first message is the number of the port
    [b"\x88\x02\x03\xe8", b"\x82\x03\x01\x50\x00" + b"\x82\x05\x01lost"],
    ids=["is closed", "has failed"],
)
def test_a_stream_ends_when_the_server_says_that_it(frames, backend, monkeypatch):
    """Whatever becomes of the connection that it said so on."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("fiber_k8s.port_forward.open_websocket", lambda *_: WebSocket(ours))
    with theirs, contextlib.closing(PortForwarder(backend._client)) as streams:
        stream = streams.open("pod", 80)
        stream.settimeout(30)
        theirs.sendall(frames)
        assert stream.recv(1) == b""
        stream.close()


#: bytes by which a server closes a stream, and by which it says on its second channel that it has failed
at_an_end = pytest.mark.parametrize(
    "end", [b"\x88\x02\x03\xe8", b"\x82\x05\x01lost"], ids=["is closed", "has failed"]
)


@at_an_end
def test_several_messages_that_come_together_with_the_end_arrive(end, backend, monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("fiber_k8s.port_forward.open_websocket", lambda *_: WebSocket(ours))
    # the numbers of the port, first on each channel
    frames = b"\x82\x03\x00\x50\x00" + b"\x82\x03\x01\x50\x00"
    frames += b"".join(b"\x82\x02\x00" + bytes([number]) for number in range(5))
    with theirs, contextlib.closing(PortForwarder(backend._client)) as streams:
        # they are read at once
        theirs.sendall(frames + end)
        stream = streams.open("pod", 80)
        stream.settimeout(30)
        found = b"".join(iter(lambda: stream.recv(2**20), b""))
        stream.close()
    assert found == bytes(range(5))


@at_an_end
def test_what_came_before_the_end_arrives_however_late_it_is_read(end, backend, monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("fiber_k8s.port_forward.open_websocket", lambda *_: WebSocket(ours))
    # the numbers of the port, and then frames of 32 KiB of data
    frames = b"\x82\x03\x00\x50\x00" + b"\x82\x03\x01\x50\x00"
    frames += 24 * (b"\x82\x7e\x80\x01\x00" + bytes(2**15))
    with theirs, contextlib.closing(PortForwarder(backend._client)) as streams:
        stream = streams.open("pod", 80)
        stream.settimeout(30)
        theirs.sendall(frames + end)
        # until all of it was taken in
        until(lambda: not any(fcntl.ioctl(theirs, termios.TIOCOUTQ, bytes(4))))
        found = b"".join(iter(lambda: stream.recv(2**20), b""))
        stream.close()
    assert found == bytes(24 * 2**15)


def test_a_connection_goes_on_when_the_api_server_is_started_again(
    site, streams, job, echo, folder
):
    with contextlib.closing(TunnelWorld(folder, patience=30)) as world:
        server = world.job("one", begin=False, add=False)
        world.client.add("one", "one", lambda: streams.open(job.id, world.ports["one"]))
        world.client.begin("one")
        sock = world.connect(server.resolve(world.serve("program", echo)))
        for _ in range(3):
            data = secrets.token_bytes(2**20)
            assert talk(sock, data) == data
            with site.cluster.outage():
                sock.sendall(b"x")
            assert sock.recv(1) == b"x"
