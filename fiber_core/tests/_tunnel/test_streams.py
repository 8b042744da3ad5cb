"""What streams are made of: sockets that never block, sessions over them, addresses, proofs."""

import queue
import random
import socket
import threading
from types import SimpleNamespace

import pytest

from fiber._tunnel.buffered import Buffered, Lines
from fiber._tunnel.crossing import ABORT, PING, WINDOW, Session
from fiber._tunnel.greeting import LONGEST, HubSide, LandingSide, Records, number
from fiber._tunnel.routes import Route, is_route, parse, route_to
from fiber._wire.reactor import Reactor
from fiber.exceptions import HandshakeError, WireError


@pytest.fixture
def reactor():
    reactor = Reactor("test")
    yield reactor
    reactor.stop()


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    other.settimeout(20)
    with one, other:
        yield one, other


class Heard(SimpleNamespace):
    def __init__(self, reactor, sock):
        super().__init__(data=bytearray(), ends=queue.SimpleQueue())

        def begin():
            on = {"on_data": self.data.extend, "on_end": self.ends.put}
            self.end = Buffered(reactor, sock, **on, on_room=lambda: None)

        reactor.call_and_wait(begin)
        self.do = lambda action: reactor.call_and_wait(lambda: action(self.end))


def test_nothing_is_read_meanwhile(reactor, pair):
    heard = Heard(reactor, pair[0])
    heard.do(lambda end: end.read(False))
    pair[1].sendall(b"abc")
    pair[1].shutdown(socket.SHUT_WR)
    heard.do(lambda _: None)
    assert heard.data == b""
    heard.do(lambda end: end.read(True))
    assert heard.ends.get(timeout=20) is None
    assert heard.data == b"abc"
    heard.do(Buffered.close)


def test_one_that_is_gone_is_told_of_when_it_is_written_to(reactor, pair):
    heard = Heard(reactor, pair[0])
    pair[1].close()
    assert heard.ends.get(timeout=20) is None
    heard.do(lambda end: end.write([b"x"]))
    assert isinstance(heard.ends.get(timeout=20), OSError)
    heard.do(Buffered.close)


class Spoken:
    def __init__(self, reactor, sock):
        self.lines = []
        self.said = threading.Event()
        self.ended = threading.Event()
        self._reactor = reactor
        reactor.call_and_wait(lambda: self._begin(sock))

    def _begin(self, sock):
        self.stream = Lines(
            self._reactor, sock, on_line=self._line, on_end=lambda _: self.ended.set()
        )

    def _line(self, line):
        self.lines.append(line)
        if line == "over":
            stream, rest = self.stream.take()
            self.rest = bytearray(rest)
            stream.hand_over(
                on_data=self.rest.extend, on_end=lambda _: self.ended.set(), on_room=lambda: None
            )
            self.said.set()


def test_lines_come_in_any_pieces_and_what_follows_is_kept(reactor, pair):
    spoken = Spoken(reactor, pair[0])
    for piece in (b"on", b"e\ntwo", b"\nover\nwhat\nfollows"):
        pair[1].sendall(piece)
    assert spoken.said.wait(20)
    assert spoken.lines == ["one", "two", "over"]
    pair[1].shutdown(socket.SHUT_WR)
    assert spoken.ended.wait(20)
    assert spoken.rest == b"what\nfollows"


def test_what_is_no_line_ends_it(reactor, pair):
    spoken = Spoken(reactor, pair[0])
    pair[1].sendall(b"x" * (2 * LONGEST))
    assert spoken.ended.wait(20)
    assert spoken.lines == []


def carry(frames, to):
    """Hand frames to the other side; what it has for its connection."""
    return b"".join(to.feed(b"".join(frames)))


def test_it_is_over_when_both_ends_know_of_both_ends():
    one, other = Session(), Session()
    carry(one.finish(), other)
    carry(other.acknowledgement(), one)
    assert not one.is_over
    assert not other.is_over
    carry(other.finish(), one)
    assert one.is_over
    assert not other.is_over
    carry(one.acknowledgement(), other)
    assert other.is_over


def test_no_more_is_taken_in_than_fits():
    one, other = Session(), Session()
    frames = [frame for _ in range(WINDOW // 2**16) for frame in one.put(bytes(2**16))]
    assert one.room == 0
    carry(frames, other)
    carry(other.acknowledgement(), one)
    assert one.room == WINDOW


def test_one_that_is_given_up_is_over():
    session = Session()
    assert list(session.feed(PING + ABORT)) == []
    assert session.is_over


@pytest.mark.parametrize("theirs", [-1, 4])
def test_nobody_has_received_what_was_not_sent(theirs):
    session = Session()
    session.put(b"abc")
    with pytest.raises(WireError):
        session.resume(theirs)


@pytest.mark.parametrize(
    "nonsense",
    [b"\x09\0\0\0\0", b"\x01\xff\xff\xff\xff", b"\x02\x08\0\0\0" + b"\xff" * 8, b"\x01\0\0\0\0"],
)
def test_nonsense_is_refused(nonsense):
    with pytest.raises(WireError):
        list(Session().feed(nonsense))


@pytest.mark.parametrize("seed", range(50))
def test_streams_may_break_anywhere(seed):
    """Two sides talk; each stream carries some bytes of what they say, and then is no more."""
    chance = random.Random(seed)
    sides = Session(), Session()
    said = tuple(chance.randbytes(chance.randrange(1, 400_000)) for _ in sides)
    heard = bytearray(), bytearray()
    put = [0, 0]
    for _ in range(2000):
        if all(side.is_over for side in sides):
            break
        wires = [bytearray(), bytearray()]
        received = [side.received for side in sides]
        for n, side in enumerate(sides):
            wires[n] += b"".join(side.resume(received[1 - n]))
        for _ in range(chance.randrange(6)):
            n = chance.randrange(2)
            side = sides[n]
            piece = said[n][put[n] : put[n] + chance.randrange(1, 60_000)][: side.room]
            if piece:
                put[n] += len(piece)
                wires[n] += b"".join(side.put(piece))
            elif put[n] == len(said[n]):
                wires[n] += b"".join(side.finish())
            arriving = chance.randrange(len(wires[n]) + 1)
            data, wires[n] = bytes(wires[n][:arriving]), wires[n][arriving:]
            heard[n].extend(b"".join(sides[1 - n].feed(data)))
            wires[1 - n] += b"".join(sides[1 - n].acknowledgement())
    assert tuple(map(bytes, heard)) == said
    assert all(side.ended for side in sides)


ROUTE = "hub+tls+tcp://ab12cd34.0@10.1.2.3:555"


def test_a_route_has_its_parts():
    route = parse(ROUTE)
    assert route == Route("tls+tcp", "ab12cd34.0", "10.1.2.3", 555)
    assert (str(route), route.job, route.direct) == (ROUTE, "ab12cd34", "tls+tcp://10.1.2.3:555")
    # of a realm, too
    assert is_route(ROUTE)
    assert is_route(f"0123456789abcdef@{ROUTE}")
    assert not is_route("0123456789abcdef@tls+tcp://10.1.2.3:555")


@pytest.mark.parametrize(
    "url,route",
    [
        ("tls+tcp://10.1.2.3:555", "hub+tls+tcp://me@10.1.2.3:555"),
        ("tls+tcp://0.0.0.0:555", "hub+tls+tcp://me@127.0.0.1:555"),
        ("tls+tcp://[::]:555", "hub+tls+tcp://me@[::1]:555"),
        ("tls+tcp://[fe80::1]:555", "hub+tls+tcp://me@[fe80::1]:555"),
        ("unix:///run/x.sock", None),
    ],
)
def test_ports_have_routes(url, route):
    assert route_to(url, "me") == route


@pytest.mark.parametrize(
    "url",
    ["tls+tcp://10.1.2.3:555", "hub+tls+tcp://a@b:99999", "hub+unix://a@b:1", "hub+tls+tcp://b:1"],
)
def test_other_addresses_have_none(url):
    assert parse(url) is None


KEY = b"k" * 32


def greet():
    hub, landing = HubSide(KEY, "one", "OFFER"), LandingSide(KEY, "one")
    ready = landing.receive(hub.receive(landing.hello()))
    assert hub.receive(ready) is None
    return hub, landing


def test_other_words_than_those_that_were_proved_are_refused():
    hub, landing = HubSide(KEY, "one", "OFFER"), LandingSide(KEY, "one")
    said = hub.receive(landing.hello())
    with pytest.raises(HandshakeError):
        landing.receive(said.replace("OFFER", "DIAL"))


def test_an_old_proof_is_refused():
    said = HubSide(KEY, "one", "OFFER").receive(LandingSide(KEY, "one").hello())
    with pytest.raises(HandshakeError):
        LandingSide(KEY, "one").receive(said)


def test_a_landing_of_another_job_is_refused():
    hub, landing = HubSide(KEY, "one", "OFFER"), LandingSide(KEY, "two")
    said = hub.receive(landing.hello())
    with pytest.raises(HandshakeError, match="meant this job"):
        landing.receive(said)
    # it proves itself to a hub that meant it
    ready = landing.receive(HubSide(KEY, "two", "OFFER").receive(landing.hello()))
    with pytest.raises(HandshakeError, match="run and job"):
        hub.receive(ready)


def test_a_landing_of_another_run_is_refused():
    hub = HubSide(KEY, "one", "OFFER")
    hub.receive(LandingSide(KEY, "one").hello())
    with pytest.raises(HandshakeError):
        hub.receive("READY " + "0" * 64)


@pytest.mark.parametrize("line", ["", "HTTP/1.1 200 OK", "fiber-ferry 2", "fiber-ferry 2 a b"])
def test_whoever_talks_otherwise_is_no_landing(line):
    hub = HubSide(KEY, "one", "OFFER")
    with pytest.raises(WireError):
        hub.receive(line)
    with pytest.raises(HandshakeError, match="version 1"):
        hub.receive("fiber-ferry 1 00")


@pytest.mark.parametrize("line", ["", "x", "GET / HTTP/1.1", "é " * 10])
def test_whoever_proves_nothing_is_no_hub(line):
    with pytest.raises(HandshakeError):
        LandingSide(KEY, "one").receive(line)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "1" * 40, "²"])
def test_a_count_is_a_number(text):
    with pytest.raises(WireError):
        number(text)


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

    @pytest.mark.parametrize(
        "said",
        [
            lambda hub, landing: b"TAKE deadbeefdeadbeef 0 hub+tcp://x@127.0.0.1:80\n",
            lambda hub, landing: bytes(100),
            # one that comes again
            lambda hub, landing: b"".join(hub.protect([b"PING\n"])) * 2,
            # one that comes too early
            lambda hub, landing: hub.protect([b"first"]) and b"".join(hub.protect([b"second"])),
            # one that comes back
            lambda hub, landing: b"".join(landing.protect([b"PING\n"])),
            # one of another stream
            lambda hub, landing: b"".join(greet()[0].records.protect([b"PING\n"])),
        ],
        ids=["nobody's", "zeros", "again", "too early", "back", "another stream's"],
    )
    def test_one_that_the_other_side_did_not_send_now_is_refused(self, sides, said):
        with pytest.raises(WireError):
            list(sides[1].feed(said(*sides)))

    def test_nothing_is_kept_of_what_is_too_large(self):
        with pytest.raises(WireError, match="a record of 300000 bytes"):
            list(Records(b"a", b"b").feed((300_000).to_bytes(4, "little")))
