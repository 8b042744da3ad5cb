"""Connections over streams: to the hub, from it, among jobs; streams that break, jobs that end."""

import contextlib
import functools
import os
import random
import re
import socket
import sys
import threading
import time

import pytest

from ferry_world import KEY, FerryWorld
from fiber._tunnel import landing as module
from fiber._tunnel.greeting import HubSide
from fiber._tunnel.landing import Landing
from fiber.exceptions import TransportError
from fiber.model.timing import Timing
from waiting import until
from wire_world import in_thread


@pytest.fixture
def world(tmp_path):
    with contextlib.closing(FerryWorld(tmp_path)) as world:
        yield world


def route(ident, echo):
    return f"hub+tcp://{ident}@127.0.0.1:{echo.port}"


def talk(sock, data):
    """Say something, and the end; what comes back, nothing from one that hangs up."""

    def say():
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)

    has_said = in_thread(say)
    heard = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            heard += piece
    has_said()
    return bytes(heard)


WAYS = {
    "from a job to the hub": lambda world, echo: world.landings["one"].way(
        world.serve("hub", echo)
    ),
    "from the hub to a job": lambda world, echo: world.hub.way(world.serve("one.0", echo)),
    "from a job to another": lambda world, echo: world.landings["one"].way(
        world.serve("two", echo)
    ),
}


@pytest.fixture(params=WAYS)
def way(world, request):
    """Each way between two jobs and the hub."""
    world.job("one")
    world.job("two")
    return WAYS[request.param](world, world.echo())


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


def test_jobs_and_the_hub_reach_each_other_over_streams_that_break(world, way):
    data = random.Random(2).randbytes(30 * 2**20)
    over = threading.Event()

    def cut():
        chance = random.Random(3)
        while not over.wait(0.05 + 0.2 * chance.random()):
            world.wires[chance.choice(["one", "two"])].cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        assert talk(world.connect(way), data) == data
    finally:
        over.set()
        cutter.join(10)


def test_nothing_is_dialled_where_no_process_of_the_run_listens(world):
    private = world.echo()
    landing = world.job("one")
    world.job("two")
    for ident in ("hub", "two", "three"):
        assert talk(world.connect(landing.way(route(ident, private))), b"GET /") == b""
    for ident in ("one", "three"):
        assert talk(world.connect(world.hub.way(route(ident, private))), b"GET /") == b""
    assert not private.talked


def test_a_process_that_listens_no_more_is_not_dialled(world):
    echo = world.echo()
    way = world.job("one").way(world.serve("hub", echo))
    assert talk(world.connect(way), b"hello") == b"hello"
    world.hub.withdraw(route("hub", echo))
    assert talk(world.connect(way), b"hello") == b""


@pytest.fixture
def between(world):
    """Somebody without the key, to whom streams into a job come, and who passes them on."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(30)

        def stream(onward):
            """A stream of the hub's, and lines of it and of one to a landing's port, which have met."""
            world.hub.add("stolen", "stolen", lambda: world.connect(f"x://127.0.0.1:{port}"))
            world.hub.begin("stolen")
            hub, _ = listener.accept()
            opened.enter_context(hub).settimeout(30)
            landing = world.connect(f"x://127.0.0.1:{onward}")
            lines = [opened.enter_context(one.makefile("rb")) for one in (hub, landing)]
            from_hub, from_landing = lines
            hub.sendall(from_landing.readline())
            landing.sendall(from_hub.readline())
            return hub, *lines

        port = listener.getsockname()[1]
        yield stream
        world.hub.remove("stolen")


def test_a_greeting_that_is_passed_on_to_another_job_is_refused(world, between):
    """Whoever took the port of one job sits between the hub and another job of the run."""
    private = world.echo()
    world.job("two", begin=False)
    hub, from_hub, from_landing = between(world.ports["two"])
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
    hub, from_hub, from_landing = between(world.ports["stolen"])
    hub.sendall(from_landing.readline())
    hub.sendall(f"TAKE deadbeefdeadbeef 0 {world.serve('hub', private)}\n".encode())
    # neither OK nor NO, and no other word: it is closed
    with contextlib.suppress(ConnectionError):
        assert b"\n" not in from_hub.read()
    assert not private.talked


def test_a_connection_ends_with_its_job_and_nothing_is_listened_on_for_it(world):
    world.job("one")
    way = world.hub.way(world.serve("one", world.echo()))
    sock = world.connect(way)
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    world.hub.remove("one")
    world.landings["one"].close()
    assert sock.recv(1) == b""
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
    with contextlib.closing(world):
        world.job("one", key=b"x" * 32)
        assert world.connect(world.hub.way(world.serve("one", world.echo()))).recv(1) == b""


def test_it_is_said_once_that_no_stream_can_be_opened_and_why(tmp_path, caplog):
    world = FerryWorld(tmp_path, timing=Timing(stream_greeting=0.2, stream_backoff=(0.05,)))
    with contextlib.closing(world):
        echo = world.echo()
        landing = world.job("one", add=False)

        def refuse():
            if time.monotonic() < world_is_back:
                raise OSError("the cluster is away")
            return world.opener("one")()

        world_is_back = time.monotonic() + 60
        world.hub.add("one", "worker-1", refuse)
        world.hub.begin("one")
        until(lambda: caplog.records)
        world_is_back = 0.0
        sock = world.connect(landing.way(world.serve("hub", echo)))
        assert talk(sock, b"hello") == b"hello"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "no stream can be opened into worker-1" in said
    assert said.endswith("the cluster is away")


def test_the_speed_is_told_once(world):
    world.job("one")
    until(lambda: world.speeds)
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


def test_a_place_that_is_taken_or_no_socket_is_said():
    with open(os.devnull) as file, socket.create_server(("127.0.0.1", 0)) as taken:
        for where in (f"fd:{file.fileno()}", f"127.0.0.1:{taken.getsockname()[1]}"):
            with pytest.raises(TransportError, match=where):
                Landing(where, key=b"k", ident="one", patience=1.0)


ask = functools.partial(module.ask, timeout=30)
serve = functools.partial(module.serve, timeout=30)


@pytest.fixture
def where():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[:2]


@pytest.fixture
def timing():
    return Timing()


@pytest.fixture
def landing(where, tmp_path, timing):
    landing = Landing(f"{where[0]}:{where[1]}", key=KEY, ident="one", patience=1.0, timing=timing)
    landing.serve(str(tmp_path))
    yield landing
    landing.close()


def greet(stream, key, words, *, job="one"):
    """Say what a stream is for; what is answered."""
    side = HubSide(key, job, words)
    with stream.makefile("rwb") as lines:
        answer = side.receive(lines.readline().decode().strip())
        lines.write(answer.encode() + b"\n")
        lines.flush()
        said = lines.readline().decode().strip()
        if not said:
            return ""
        side.receive(said)
        heard = b""
        while not heard.endswith(b"\n") and (data := lines.read1(1000)):
            heard += b"".join(side.records.feed(data))
        return heard.decode().strip()


def test_what_came_in_place_of_the_parents_streams_is_told(landing, where):
    def told(what):
        place = re.escape(f"{where[0]}:{where[1]}")
        none = rf"no stream was opened into this job at {place} within \d+ s"
        return re.fullmatch(none + re.escape(what), landing.missing())

    asked = "DIAL 0 0 127.0.0.1:1"
    assert told("")
    with socket.create_connection(where, timeout=30) as silent:
        silent.recv(100)
        assert told(" (1 came and said nothing)")
        with socket.create_connection(where, timeout=30) as other:
            greet(other, b"x" * 32, asked)
        assert told(" (2 came, none of which proved that it is the parent's)")
    with socket.create_connection(where, timeout=30) as stream:
        greet(stream, KEY, asked)
    assert landing.missing() == ""


@pytest.fixture
def stream(where, landing):
    with socket.create_connection(where, timeout=30) as stream:
        yield stream


@pytest.mark.parametrize(
    "key, words, job",
    [(b"x" * 32, "OFFER", "one"), (KEY, "OFFER", "two"), (KEY, "SING a song", "one")],
    ids=["a stranger", "one that means another job", "words that it does not know"],
)
def test_others_are_sent_away(stream, key, words, job):
    assert greet(stream, key, words, job=job) == ""


def test_nonsense_is_sent_away(stream):
    stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
    while stream.recv(100):
        continue


@pytest.mark.parametrize("timing", [Timing(stream_greeting=0.5)])
def test_whoever_says_nothing_is_sent_away(stream):
    assert stream.recv(100).startswith(b"fiber-ferry 2 ")
    assert stream.recv(100) == b""


def test_as_many_as_may_say_nothing_keep_nobody_out(where, landing):
    with contextlib.ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(where, timeout=30))
            for _ in range(module._UNPROVEN + 1)
        ]
        assert all(one.recv(100).startswith(b"fiber-ferry 2 ") for one in silent)
        # the first one made room for the last
        assert silent[0].recv(100) == b""
        stream = held.enter_context(socket.create_connection(where, timeout=30))
        assert greet(stream, KEY, "DIAL ab12 77 127.0.0.1:1") == "NO it was given up"


def test_processes_of_the_job_are_reached_while_they_listen(where, landing, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = f"127.0.0.1:{other.getsockname()[1]}"

        def dial(connection):
            with socket.create_connection(where, timeout=30) as stream:
                return greet(stream, KEY, f"DIAL {connection} 0 {there}")

        assert dial("a1") == f"NO nobody of this job listens at {there}"
        with serve(tmp_path, f"hub+tcp://one.0@{there}"):
            assert dial("b2") == "OK 0"
            other.accept()[0].close()
        # its end is heard of before the next question is answered
        ask(tmp_path, "tcp://127.0.0.1:1")
        assert dial("c3").startswith("NO nobody of this job")


@pytest.mark.parametrize("url", ["hub+tcp://two.0@127.0.0.1:1", "tcp://127.0.0.1:1", "x"])
def test_what_is_no_address_of_the_job_is_said(landing, tmp_path, url):
    with pytest.raises(TransportError, match="no address of a process of job one"):
        serve(tmp_path, url)


@pytest.mark.skipif(sys.platform != "linux", reason="there are longer paths on Linux alone")
def test_it_is_asked_however_deep_its_folder_lies(world, tmp_path):
    deep = "d" * 120
    world.job(deep, begin=False, add=False)
    assert ask(tmp_path / deep, "tcp://127.0.0.1:1") == "tcp://127.0.0.1:1"
