"""Connections over streams: to the hub, from it, among jobs; streams that break, jobs that end."""

import contextlib
import functools
import os
import random
import socket
import threading
import time

import pytest

from ferry_world import FerryWorld
from fiber._tunnel.landing import Landing, ask
from fiber.exceptions import TransportError
from fiber.model.timing import Timing


@pytest.fixture
def world(tmp_path):
    world = FerryWorld(tmp_path)
    yield world
    world.close()


def route(ident, echo):
    return f"hub+tcp://{ident}@127.0.0.1:{echo.port}"


def talk(sock, data):
    """Say something, and the end; what comes back, nothing from one that hangs up."""

    def say():
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=say)
    sender.start()
    heard = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            heard += piece
    sender.join(30)
    return bytes(heard)


def ways(world):
    """Ways between two jobs and the hub."""
    landing, echo = world.job("one"), world.echo()
    world.job("two")
    return {
        "from a job to the hub": lambda: landing.way(world.serve("hub", echo)),
        "from the hub to a job": lambda: world.hub.way(world.serve("one.0", echo)),
        "from a job to another": lambda: landing.way(world.serve("two", echo)),
    }


WAYS = ["from a job to the hub", "from the hub to a job", "from a job to another"]


@pytest.mark.parametrize("which", WAYS)
def test_jobs_and_the_hub_reach_each_other(world, which):
    way = ways(world)[which]()
    for _ in range(5):
        assert talk(world.connect(way), b"hello") == b"hello"


def test_a_job_reaches_its_own_processes_by_itself(world):
    echo = world.echo()
    landing = world.job("one", begin=False)
    assert talk(world.connect(landing.way(route("one.3", echo))), b"hello") == b"hello"


def test_processes_of_a_job_ask_for_ways(world, tmp_path):
    world.job("one")
    way = ask(tmp_path / "one", world.serve("hub", world.echo()), timeout=30)
    assert talk(world.connect(way), b"hello") == b"hello"


def test_where_nobody_answers_there_is_no_way(tmp_path):
    with pytest.raises(TransportError):
        ask(tmp_path, "hub+tcp://hub@127.0.0.1:1", timeout=30)


def test_large_things_arrive_whole(world):
    landing = world.job("one")
    data = random.Random(1).randbytes(20 * 2**20)
    assert talk(world.connect(landing.way(world.serve("hub", world.echo()))), data) == data


@pytest.mark.parametrize("which", WAYS)
def test_streams_that_break_are_opened_again_and_nobody_notices(world, which):
    dialled = ways(world)[which]()
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


def test_nothing_is_dialled_where_no_process_of_the_run_listens(world):
    private = world.echo()
    landing = world.job("one")
    world.job("two")
    for ident in ("hub", "two"):
        assert talk(world.connect(landing.way(route(ident, private))), b"GET /") == b""
    assert talk(world.connect(world.hub.way(route("one", private))), b"GET /") == b""


def test_a_process_that_listens_no_more_is_not_dialled(world):
    echo = world.echo()
    landing = world.job("one")
    way = landing.way(world.serve("hub", echo))
    assert talk(world.connect(way), b"hello") == b"hello"
    world.hub.withdraw(route("hub", echo))
    assert talk(world.connect(way), b"hello") == b""


class Between:
    """Somebody without the key to whom streams into a job come, and who passes them on.

    Args:
        onward: port where another landing listens, or the right one.
    """

    def __init__(self, onward):
        self._onward = onward
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(30)
        self.port = self._listener.getsockname()[1]
        self._open = [self._listener]

    def stream(self):
        """The next stream that the hub opens, with both ends, and lines of each."""
        hub, _ = self._listener.accept()
        hub.settimeout(30)
        landing = socket.create_connection(("127.0.0.1", self._onward), timeout=30)
        self._open += [hub, landing, hub.makefile("rb"), landing.makefile("rb")]
        return self._open[-4:]

    def close(self):
        for one in reversed(self._open):
            one.close()


@pytest.fixture
def between(world, tmp_path):
    """Who sits between the hub and a job, as they like."""
    opened = []

    def between(onward):
        made = Between(onward)
        opened.append(made)
        dial = functools.partial(socket.create_connection, ("127.0.0.1", made.port), 5)
        world.hub.add("stolen", "stolen", dial)
        world.hub.begin("stolen")
        return made

    yield between
    world.hub.remove("stolen")
    for one in opened:
        one.close()


def test_a_greeting_that_is_passed_on_to_another_job_is_refused(world, between):
    """Whoever took the port of one job sits between the hub and another job of the run."""
    private = world.echo()
    world.job("two", begin=False)
    hub, landing, from_hub, from_landing = between(world.ports["two"]).stream()
    hub.sendall(from_landing.readline())
    landing.sendall(from_hub.readline())
    # the landing of the other job proves nothing to a hub that did not mean it
    assert from_landing.readline() == b""
    hub.sendall(f"READY {'0' * 64}\n".encode())
    with contextlib.suppress(ConnectionError):
        hub.sendall(f"TAKE deadbeefdeadbeef 0 {world.serve('hub', private)}\n".encode())
        assert from_hub.readline() == b""
    assert not private.talked


def test_nobody_between_says_anything_of_his_own(world, between):
    """He passes on the whole greeting, which is good, and then wants something himself."""
    private = world.echo()
    world.job("stolen", begin=False, add=False)
    hub, landing, from_hub, from_landing = between(world.ports["stolen"]).stream()
    hub.sendall(from_landing.readline())
    landing.sendall(from_hub.readline())
    hub.sendall(from_landing.readline())
    hub.sendall(f"TAKE deadbeefdeadbeef 0 {world.serve('hub', private)}\n".encode())
    # neither OK nor NO, and no other word: it is closed
    with contextlib.suppress(ConnectionError):
        assert b"\n" not in from_hub.read()
    assert not private.talked


def test_a_connection_ends_with_its_job(world):
    echo = world.echo()
    world.job("one")
    sock = world.connect(world.hub.way(world.serve("one", echo)))
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    world.hub.remove("one")
    world.landings["one"].close()
    assert sock.recv(1) == b""


def test_nothing_is_listened_on_for_a_job_that_has_ended(world):
    echo = world.echo()
    world.job("one")
    way = world.hub.way(world.serve("one", echo))
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
    sock = world.connect(landing.way(world.serve("hub", echo)))
    world.hub.begin("one")
    assert talk(sock, b"hello") == b"hello"


def test_whoever_is_of_another_run_is_let_into_nothing(tmp_path):
    world = FerryWorld(tmp_path, patience=1.0, timing=Timing(stream_answer=1.0))
    try:
        echo = world.echo()
        world.job("one", key=b"x" * 32)
        assert world.connect(world.hub.way(world.serve("one", echo))).recv(1) == b""
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


def test_streams_may_come_in_by_a_socket_that_is_inherited(tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        number = os.dup(bound.fileno())
        os.set_inheritable(number, True)
        landing = Landing(f"fd:{number}", key=b"k", ident="one", patience=1.0)
        assert not os.get_inheritable(number)
        landing.serve(str(tmp_path))
        with socket.create_connection(bound.getsockname(), timeout=30) as stream:
            assert stream.recv(100).startswith(b"fiber-ferry ")
        landing.close()


def test_a_descriptor_that_is_no_socket_is_said():
    with open(os.devnull) as file, pytest.raises(TransportError, match=f"fd:{file.fileno()}"):
        Landing(f"fd:{file.fileno()}", key=b"k", ident="one", patience=1.0)


def test_a_place_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match=where):
            Landing(where, key=b"k", ident="one", patience=1.0)
