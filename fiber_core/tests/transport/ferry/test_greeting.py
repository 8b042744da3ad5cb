"""Whoever opens a stream and whoever takes it prove to each other that they are of one run."""

import pytest

from fiber.exceptions import HandshakeError, WireError
from fiber.transport.ferry.greeting import HubSide, LandingSide, number, split

KEY = b"k" * 32


def greet(hub_key=KEY, landing_key=KEY, words="DIAL ab 0 127.0.0.1:9"):
    hub, landing = HubSide(hub_key, words), LandingSide(landing_key)
    ready = landing.receive(hub.receive(landing.hello()))
    assert hub.receive(ready) is None
    return hub, landing


def test_both_are_of_one_run():
    hub, landing = greet()
    assert hub.done
    assert landing.words == "DIAL ab 0 127.0.0.1:9"


def test_a_strangers_stream_is_refused():
    with pytest.raises(HandshakeError):
        greet(hub_key=b"x" * 32)


def test_other_words_than_those_that_were_proved_are_refused():
    hub, landing = HubSide(KEY, "OFFER"), LandingSide(KEY)
    said = hub.receive(landing.hello())
    with pytest.raises(HandshakeError):
        landing.receive(said.replace("OFFER", "DIAL"))


def test_an_old_proof_is_refused():
    said = HubSide(KEY, "OFFER").receive(LandingSide(KEY).hello())
    with pytest.raises(HandshakeError):
        LandingSide(KEY).receive(said)


def test_a_landing_of_another_run_is_refused():
    hub = HubSide(KEY, "OFFER")
    hub.receive(LandingSide(KEY).hello())
    with pytest.raises(HandshakeError):
        hub.receive("READY " + "0" * 64)


def test_another_version_is_told_apart():
    with pytest.raises(HandshakeError, match="version 2"):
        HubSide(KEY, "OFFER").receive("fiber-ferry 2 00")


@pytest.mark.parametrize("line", ["", "HTTP/1.1 200 OK", "fiber-ferry 1", "fiber-ferry 1 a b"])
def test_whoever_talks_otherwise_is_no_landing(line):
    with pytest.raises(WireError):
        HubSide(KEY, "OFFER").receive(line)


@pytest.mark.parametrize("line", ["", "x", "GET / HTTP/1.1", "é " * 10])
def test_whoever_proves_nothing_is_no_hub(line):
    with pytest.raises(HandshakeError):
        LandingSide(KEY).receive(line)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "1" * 40, "²"])
def test_a_count_is_a_number(text):
    with pytest.raises(WireError):
        number(text)


def test_a_line_has_its_words():
    assert split("OK 7", "OK", 1) == ["7"]
    with pytest.raises(WireError):
        split("OK 7 8", "OK", 1)
