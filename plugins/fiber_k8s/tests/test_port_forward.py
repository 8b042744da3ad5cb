"""Streams into pods: bytes both ways, ends, refusals; cut by the cluster, a connection goes on."""

import asyncio
import random
import secrets
import socket
import threading

import pytest

from cluster import hollow as hollow_pods
from ferry_world import KEY, Echo
from fiber._tunnel.hub import Hub
from fiber._tunnel.landing import Landing
from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber_k8s.port_forward import PortForwarder


@pytest.fixture
def echo():
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture(autouse=True)
def _ports_are_ours(monkeypatch):
    """Connects ports of hollow pods to ports of this host."""

    async def dial(_self, port):
        return await asyncio.open_connection("127.0.0.1", port)

    monkeypatch.setattr(hollow_pods.Emptiness, "dial", dial)


@pytest.fixture
def job(site, backend):
    job = site.start(backend)
    backend.recorder.running(job)
    return job


@pytest.fixture
def streams(backend):
    made = PortForwarder(backend._client)
    yield made
    made.close()


def talk(sock, data, size=1 << 16):
    """Send bytes; return the answer."""
    sender = threading.Thread(target=sock.sendall, args=(data,))
    sender.start()
    heard = bytearray()
    while len(heard) < len(data) and (piece := sock.recv(size)):
        heard += piece
    sender.join(30)
    return bytes(heard)


def test_bytes_go_both_ways(streams, job, echo):
    with streams.open(job.id, echo.port) as stream:
        stream.settimeout(30)
        data = random.Random(1).randbytes(5 * 2**20)
        assert talk(stream, data) == data


def test_many_at_once(streams, job, echo):
    made = [streams.open(job.id, echo.port) for _ in range(8)]
    for number, stream in enumerate(made):
        stream.settimeout(30)
        stream.sendall(bytes([number]))
    assert [stream.recv(1) for stream in made] == [bytes([number]) for number in range(8)]
    for stream in made:
        stream.close()


def test_without_a_listener_it_ends(streams, job):
    with streams.open(job.id, 1) as stream:
        stream.settimeout(30)
        assert stream.recv(1) == b""


def test_a_missing_pod_is_unknown(streams):
    with pytest.raises(UnknownJobError, match="nobody"):
        streams.open("nobody", 1)


def test_an_unreachable_cluster_is_an_error(site, streams, job):
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


def test_a_connection_goes_on_when_the_api_server_is_started_again(
    site, streams, job, echo, tmp_path
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    landing = Landing(f"127.0.0.1:{port}", key=KEY, ident="one", patience=30)
    landing.serve(str(tmp_path))
    hub = Hub(KEY, "hub", patience=30, on_speed=lambda _: None)
    hub.add("one", "one", lambda: streams.open(job.id, port))
    hub.begin("one")
    route = f"hub+tcp://hub@127.0.0.1:{echo.port}"
    hub.serve(route)
    way = landing.way(route)
    host, _, number = way.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(number)), timeout=60) as sock:
        for _ in range(3):
            data = secrets.token_bytes(2**20)
            assert talk(sock, data) == data
            with site.cluster.outage():
                sock.sendall(b"x")
            assert sock.recv(1) == b"x"
    hub.close()
    landing.close()
