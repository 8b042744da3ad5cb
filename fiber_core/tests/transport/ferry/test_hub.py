"""Connections over streams: to the hub, from it, among jobs; streams that break, jobs that end."""

import random
import socket
import threading
import time

import pytest

from ferry_world import FerryWorld
from fiber.exceptions import TransportError
from fiber.transport.ferry import hub
from fiber.transport.ferry.landing import Landing, ask


@pytest.fixture
def world(tmp_path):
    world = FerryWorld(tmp_path)
    yield world
    world.close()


def route(ident, echo):
    return f"hub+tcp://{ident}@127.0.0.1:{echo.port}"


def talk(sock, data):
    """Say something, and the end; what comes back."""
    sender = threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    heard = bytearray()
    while piece := sock.recv(1 << 16):
        heard += piece
    sender.join(30)
    return bytes(heard)


def test_a_job_reaches_the_hub(world):
    echo = world.echo()
    landing = world.job("one")
    for _ in range(5):
        assert talk(world.connect(landing.way(route("hub", echo))), b"hello") == b"hello"


def test_the_hub_reaches_a_job(world):
    echo = world.echo()
    world.job("one")
    for _ in range(5):
        assert talk(world.connect(world.hub.way(route("one.0", echo))), b"hello") == b"hello"


def test_a_job_reaches_another_one(world):
    echo = world.echo()
    landing = world.job("one")
    world.job("two")
    assert talk(world.connect(landing.way(route("two", echo))), b"hello") == b"hello"


def test_a_job_reaches_its_own_processes_by_itself(world):
    echo = world.echo()
    landing = world.job("one", begin=False)
    assert talk(world.connect(landing.way(route("one.3", echo))), b"hello") == b"hello"


def test_processes_of_a_job_ask_for_ways(world, tmp_path):
    echo = world.echo()
    world.job("one")
    assert talk(world.connect(ask(tmp_path / "one", route("hub", echo))), b"hello") == b"hello"


def test_where_nobody_answers_there_is_no_way(tmp_path):
    with pytest.raises(TransportError):
        ask(tmp_path, "hub+tcp://hub@127.0.0.1:1")


def test_large_things_arrive_whole(world):
    echo = world.echo()
    landing = world.job("one")
    data = random.Random(1).randbytes(20 * 2**20)
    assert talk(world.connect(landing.way(route("hub", echo))), data) == data


@pytest.mark.parametrize("way", ["in", "out", "among"])
def test_streams_that_break_are_opened_again_and_nobody_notices(world, way):
    echo = world.echo()
    landing = world.job("one")
    world.job("two")
    dialled = {
        "in": lambda: world.hub.way(route("one", echo)),
        "out": lambda: landing.way(route("hub", echo)),
        "among": lambda: landing.way(route("two", echo)),
    }[way]()
    data = random.Random(2).randbytes(30 * 2**20)
    over = threading.Event()

    def cut():
        chance = random.Random(3)
        while not over.wait(0.05 + 0.2 * chance.random()):
            world.wires[chance.choice(["one", "two"])].cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        assert talk(world.connect(dialled), data) == data
    finally:
        over.set()
        cutter.join(10)


def test_whoever_is_nobody_is_not_reached(world):
    echo = world.echo()
    landing = world.job("one")
    for nobody in ("three", "hub"):
        way = landing.way(route(nobody, echo).replace(str(echo.port), "1"))
        assert talk(world.connect(way), b"") == b""
    assert world.connect(world.hub.way(route("three", echo))).recv(1) == b""


def test_a_connection_ends_with_its_job(world):
    echo = world.echo()
    world.job("one")
    sock = world.connect(world.hub.way(route("one", echo)))
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    world.hub.remove("one")
    world.landings["one"].close()
    assert sock.recv(1) == b""


def test_nothing_is_listened_on_for_a_job_that_has_ended(world):
    echo = world.echo()
    world.job("one")
    way = world.hub.way(route("one", echo))
    assert talk(world.connect(way), b"hello") == b"hello"
    world.hub.remove("one")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            world.connect(way)
        except ConnectionRefusedError:
            return
        except ConnectionError:
            # while it is being closed
            continue
    pytest.fail("it is listened on still")


def test_a_connection_waits_until_its_job_runs(world):
    echo = world.echo()
    landing = world.job("one", begin=False)
    sock = world.connect(landing.way(route("hub", echo)))
    world.hub.begin("one")
    assert talk(sock, b"hello") == b"hello"


def test_whoever_is_of_another_run_is_let_into_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_PATIENCE", 1.0)
    world = FerryWorld(tmp_path, patience=1.0)
    try:
        echo = world.echo()
        world.job("one", key=b"x" * 32)
        assert world.connect(world.hub.way(route("one", echo))).recv(1) == b""
    finally:
        world.close()


def test_the_speed_is_told_once(world):
    world.job("one")
    assert world.told.wait(30)
    world.job("two")
    ((there_and_back, rate),) = world.speeds
    assert there_and_back > 0
    assert rate > 0


def test_streams_may_come_in_at_a_path(tmp_path):
    path = tmp_path / "in"
    landing = Landing(str(path), key=b"k", ident="one", patience=1.0)
    assert path.is_socket()
    landing.close()
    assert not path.exists()


def test_a_place_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match=where):
            Landing(where, key=b"k", ident="one", patience=1.0)
