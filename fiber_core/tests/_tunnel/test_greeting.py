"""Whoever opens a stream and whoever takes it prove to each other that they are of one run."""

import pytest

from fiber._tunnel.greeting import HubSide, LandingSide, Records, number, split
from fiber.exceptions import HandshakeError, WireError

KEY = b"k" * 32


def greet(hub_key=KEY, landing_key=KEY, words="DIAL ab 0 127.0.0.1:9", job="one"):
    hub, landing = HubSide(hub_key, "one", words), LandingSide(landing_key, job)
    ready = landing.receive(hub.receive(landing.hello()))
    assert hub.receive(ready) is None
    return hub, landing


def test_both_are_of_one_run():
    hub, landing = greet()
    assert hub.records is not None
    assert landing.words == "DIAL ab 0 127.0.0.1:9"


def test_a_strangers_stream_is_refused():
    with pytest.raises(HandshakeError):
        greet(hub_key=b"x" * 32)


def test_other_words_than_those_that_were_proved_are_refused():
    hub, landing = HubSide(KEY, "one", "OFFER"), LandingSide(KEY, "one")
    said = hub.receive(landing.hello())
    with pytest.raises(HandshakeError):
        landing.receive(said.replace("OFFER", "DIAL"))


def test_an_old_proof_is_refused():
    said = HubSide(KEY, "one", "OFFER").receive(LandingSide(KEY, "one").hello())
    with pytest.raises(HandshakeError):
        LandingSide(KEY, "one").receive(said)


def test_a_proof_for_one_job_is_none_for_another():
    with pytest.raises(HandshakeError, match="meant this job"):
        greet(job="two")


def test_a_landing_of_another_job_is_refused():
    landing = LandingSide(KEY, "two")
    hub = HubSide(KEY, "one", "OFFER")
    hub.receive(landing.hello())
    # it proves itself to a hub that meant it
    ready = landing.receive(HubSide(KEY, "two", "OFFER").receive(landing.hello()))
    with pytest.raises(HandshakeError, match="run and job"):
        hub.receive(ready)


def test_a_landing_of_another_run_is_refused():
    hub = HubSide(KEY, "one", "OFFER")
    hub.receive(LandingSide(KEY, "one").hello())
    with pytest.raises(HandshakeError):
        hub.receive("READY " + "0" * 64)


def test_another_version_is_told_apart():
    with pytest.raises(HandshakeError, match="version 1"):
        HubSide(KEY, "one", "OFFER").receive("fiber-ferry 1 00")


@pytest.mark.parametrize("line", ["", "HTTP/1.1 200 OK", "fiber-ferry 2", "fiber-ferry 2 a b"])
def test_whoever_talks_otherwise_is_no_landing(line):
    with pytest.raises(WireError):
        HubSide(KEY, "one", "OFFER").receive(line)


@pytest.mark.parametrize("line", ["", "x", "GET / HTTP/1.1", "é " * 10])
def test_whoever_proves_nothing_is_no_hub(line):
    with pytest.raises(HandshakeError):
        LandingSide(KEY, "one").receive(line)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "1" * 40, "²"])
def test_a_count_is_a_number(text):
    with pytest.raises(WireError):
        number(text)


def test_a_line_has_its_words():
    assert split("OK 7", "OK", 1) == ["7"]
    with pytest.raises(WireError):
        split("OK 7 8", "OK", 1)


class TestRecords:
    """What follows a greeting can be said by its two sides alone."""

    @pytest.fixture
    def sides(self):
        hub, landing = greet()
        return hub.records, landing.records

    def test_bytes_arrive_as_they_were_sent_in_any_pieces(self, sides):
        hub, landing = sides
        for one, other in (sides, (landing, hub)):
            sent = [b"", b"a", bytes(300_000), b"bc" * 200_000, b"", b"d"]
            travels = b"".join(one.protect(sent)) + b"".join(one.protect([b"OK 7\n"]))
            arrived = b""
            for begin in range(0, len(travels), 99_991):
                arrived += b"".join(other.feed(travels[begin : begin + 99_991]))
            assert arrived == b"".join(sent) + b"OK 7\n"
            assert one.protect([]) == one.protect([b""]) == []

    @pytest.mark.parametrize("place", [0, 4, 8, -1])
    def test_one_that_was_changed_is_refused(self, sides, place):
        hub, landing = sides
        travels = bytearray(b"".join(hub.protect([b"TAKE x"])))
        travels[place] ^= 1
        with pytest.raises(WireError):
            list(landing.feed(travels + bytes(100)))

    def test_one_that_nobody_sent_is_refused(self, sides):
        for said in (b"TAKE deadbeefdeadbeef 0 hub+tcp://x@127.0.0.1:80\n", bytes(100)):
            with pytest.raises(WireError):
                list(sides[0].feed(said))

    def test_one_that_comes_again_is_refused(self, sides):
        hub, landing = sides
        travels = b"".join(hub.protect([b"PING\n"]))
        assert list(landing.feed(travels)) == [b"PING\n"]
        with pytest.raises(WireError, match="whoever greeted us"):
            list(landing.feed(travels))

    def test_one_that_comes_too_early_is_refused(self, sides):
        hub, landing = sides
        hub.protect([b"first"])
        with pytest.raises(WireError):
            list(landing.feed(b"".join(hub.protect([b"second"]))))

    def test_what_comes_back_is_refused(self, sides):
        hub, _ = sides
        with pytest.raises(WireError):
            list(hub.feed(b"".join(hub.protect([b"PING\n"]))))

    def test_each_stream_has_keys_of_its_own(self, sides):
        _, (other, _) = sides, greet()
        with pytest.raises(WireError):
            list(sides[1].feed(b"".join(other.records.protect([b"PING\n"]))))

    def test_nothing_is_kept_of_what_is_too_large(self):
        with pytest.raises(WireError, match="a record of 300000 bytes"):
            list(Records(b"a", b"b").feed((300_000).to_bytes(4, "little")))
