"""The side into which streams are opened: who comes in there, and who does not."""

import contextlib
import functools
import socket
import sys

import pytest

from ferry_world import KEY
from fiber._tunnel import landing as module
from fiber._tunnel.greeting import HubSide
from fiber._tunnel.landing import Landing
from fiber.exceptions import TransportError
from fiber.model.timing import Timing

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
def test_it_is_asked_however_deep_its_folder_lies(where, tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    landing = Landing(f"{where[0]}:{where[1]}", key=KEY, ident="one", patience=1.0)
    landing.serve(str(deep))
    try:
        url = "tcp://127.0.0.1:1"
        assert ask(deep, url) == url
    finally:
        landing.close()
