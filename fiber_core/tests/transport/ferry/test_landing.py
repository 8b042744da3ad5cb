"""The side into which streams are opened: who comes in there, and who does not."""

import socket
import sys

import pytest

from ferry_world import KEY
from fiber.transport.ferry import landing as module
from fiber.transport.ferry.greeting import HubSide
from fiber.transport.ferry.landing import Landing, ask


@pytest.fixture
def where():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[:2]


@pytest.fixture
def landing(where, tmp_path):
    landing = Landing(f"{where[0]}:{where[1]}", key=KEY, ident="one", patience=1.0)
    landing.serve(str(tmp_path))
    yield landing
    landing.close()


def greet(stream, key, words):
    """Say what a stream is for; what is answered."""
    side = HubSide(key, words)
    with stream.makefile("rwb") as lines:
        answer = side.receive(lines.readline().decode().strip())
        lines.write(answer.encode() + b"\n")
        lines.flush()
        said = lines.readline().decode().strip()
        if said:
            side.receive(said)
        return said and lines.readline().decode().strip()


@pytest.fixture
def stream(where, landing):
    with socket.create_connection(where, timeout=30) as stream:
        yield stream


def test_a_stranger_is_sent_away(stream):
    assert greet(stream, b"x" * 32, "OFFER") == ""


def test_nonsense_is_sent_away(stream):
    stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
    while stream.recv(100):
        continue


def test_whoever_says_nothing_is_sent_away(stream, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    assert stream.recv(100).startswith(b"fiber-ferry 1 ")
    assert stream.recv(100) == b""


def test_a_connection_that_was_given_up_does_not_begin_anew(stream):
    assert greet(stream, KEY, "DIAL ab12 77 127.0.0.1:1") == "NO it was given up"


def test_words_that_it_does_not_know_are_refused(stream):
    assert greet(stream, KEY, "SING a song") == ""


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
