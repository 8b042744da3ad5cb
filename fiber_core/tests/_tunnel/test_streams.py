"""What a tunnel is made of: frames with codes, channels, addresses."""

import random

import pytest

from fiber._tunnel import is_route
from fiber._tunnel.mux import MAX_DATA, PING, WINDOW, Event, Kind, Mux, Resumption
from fiber._tunnel.routes import Route, parse, route_to
from fiber._tunnel.tunnel import Records
from fiber.exceptions import WireError


def carry(frames, to):
    """Hand frames to the other side; its events."""
    events = [to.receive(head + body) for head, body in frames]
    return [event for event in events if event is not None]


@pytest.fixture
def sides():
    return Mux(is_client=True), Mux(is_client=False)


@pytest.fixture
def channel(sides):
    """A channel that the client has opened."""
    one, other = sides
    channel, frames = one.open("tunnel+tcp://a@b:1")
    assert carry(frames, other) == [Event(Kind.OPEN, channel, b"tunnel+tcp://a@b:1")]
    return channel


def test_no_more_is_sent_than_was_granted(sides, channel):
    one, other = sides
    for _ in range(WINDOW // MAX_DATA):
        carry(one.send_data(channel, bytes(MAX_DATA)), other)
    assert one.room(channel) == 0
    carry(other.grant(channel, 10), one)
    assert one.room(channel) == 10
    with pytest.raises(WireError, match="11 bytes in channel 1 of a tunnel"):
        carry(one.send_data(channel, bytes(11)), other)


def test_a_channel_that_was_given_up_hears_no_more(sides, channel):
    one, other = sides
    on_its_way = one.send_data(channel, b"abc") + one.finish(channel)
    (reset,) = carry(other.reset(channel, "nobody is there"), one)
    assert (reset.kind, reset.text) == (Kind.RESET, "nobody is there")
    assert carry(on_its_way, other) == []
    assert one.room(channel) == 0
    assert one.reset(channel) == one.grant(channel, 1) == []


def test_numbers_of_channels_begin_again_with_those_that_are_free(sides, channel):
    one, other = sides
    one._next_channel = 2**32 - 1
    for expected in (2**32 - 1, 3, 5):
        found, frames = one.open("again")
        assert [event.channel for event in carry(frames, other)] == [found] == [expected]
    assert [event.body for event in carry(one.send_data(2**32 - 1, b"abc"), other)] == [b"abc"]
    assert carry(other.reset(3), one)[0].channel == 3
    assert other.room(3) == 0


def test_what_was_acknowledged_is_not_sent_again(sides, channel):
    one, other = sides
    carry(one.send_data(channel, b"abc"), other)
    carry(other.acknowledgement(now=True), one)
    frames = one.finish(channel)
    assert one.resume(other.received) == frames
    assert other.acknowledgement(now=True) == []


@pytest.mark.parametrize("received", [0, 5])
def test_nobody_has_received_what_was_not_sent(sides, channel, received):
    one, other = sides
    carry(other.acknowledgement(now=True), one)
    with pytest.raises(WireError):
        one.resume(received)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x0b\0\0\0\0",
        b"\x05\x01\0\0\0" + bytes(MAX_DATA + 1),
        # an acknowledgement of what was never sent, and half of one
        b"\x02\0\0\0\0" + b"\xff" * 8,
        b"\x02\0\0\0\0" + b"\xff" * 4,
        # channels that are not theirs to open, and the same one again
        b"\x04\0\0\0\0x",
        b"\x04\x02\0\0\0x",
        b"\x04\x01\0\0\0x",
        # of channels that were never opened
        b"\x06\x09\0\0\0",
        b"\x06\x02\0\0\0",
        b"\x06\0\0\0\0",
        # no bytes, and half a number
        b"\x05\x01\0\0\0",
        b"\x08\x01\0\0\0\0",
    ],
)
def test_what_breaks_the_protocol_is_refused(sides, channel, frame):
    with pytest.raises(WireError):
        sides[1].receive(frame)


def test_nothing_follows_an_end(sides, channel):
    one, other = sides
    carry(one.finish(channel), other)
    for frames in (one.send_data(channel, b"x"), one.finish(channel)):
        with pytest.raises(WireError, match="behind the end of channel 1"):
            carry(frames, other)


def test_a_sign_of_life_is_no_event(sides):
    assert carry([PING], sides[0]) == []
    with pytest.raises(WireError):
        Resumption.parse(b"x")
    said = Resumption(b"s" * 16, 7, True)
    (event,) = carry([said.frame()], sides[0])
    assert Resumption.parse(event.body) == said


@pytest.mark.parametrize("seed", range(50))
def test_streams_may_break_anywhere(seed):
    """Both sides open channels and talk; each stream carries some frames, and then is no more."""
    chance = random.Random(seed)
    sides = Mux(is_client=True), Mux(is_client=False)
    said, heard, ended, known = {}, {}, set(), set()
    for n, side in enumerate(sides):
        for _ in range(chance.randrange(1, 4)):
            channel, _ = side.open("x")
            known.add((n, channel))
            for m in (0, 1):
                said[m, channel] = chance.randbytes(chance.randrange(400_000))
                heard[m, channel] = bytearray()
    put, finished = dict.fromkeys(said, 0), set()
    wires = ([], [])

    def arrive(n, frame):
        """A frame of side n is at the other one."""
        m = 1 - n
        for event in carry([frame], sides[m]):
            if event.kind is Kind.OPEN:
                known.add((m, event.channel))
            elif event.kind is Kind.DATA:
                heard[n, event.channel] += event.body
                wires[m].extend(sides[m].grant(event.channel, len(event.body)))
            elif event.kind is Kind.END:
                ended.add((n, event.channel))
        wires[m].extend(sides[m].acknowledgement(now=chance.random() < 0.3))

    for _ in range(10_000):
        if len(ended) == len(said):
            break
        received = [side.received for side in sides]
        for n, side in enumerate(sides):
            wires[n][:] = side.resume(received[1 - n])
        for _ in range(chance.randrange(60)):
            n = chance.randrange(2)
            speaker = chance.choice([key for key in said if key[0] == n])
            if speaker in known and speaker not in finished:
                channel, at = speaker[1], put[speaker]
                size = min(chance.randrange(1, MAX_DATA), sides[n].room(channel))
                piece = said[speaker][at : at + size]
                put[speaker] += len(piece)
                if piece:
                    wires[n].extend(sides[n].send_data(channel, piece))
                elif at == len(said[speaker]):
                    finished.add(speaker)
                    wires[n].extend(sides[n].finish(channel))
            for _ in range(chance.randrange(4)):
                if wires[n]:
                    arrive(n, wires[n].pop(0))
    assert heard == said
    assert len(ended) == len(said)


ROUTE = "tunnel+tls+tcp://ab12cd34.0@10.1.2.3:555"


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
        ("tls+tcp://10.1.2.3:555", "tunnel+tls+tcp://me@10.1.2.3:555"),
        ("tls+tcp://0.0.0.0:555", "tunnel+tls+tcp://me@127.0.0.1:555"),
        ("tls+tcp://[::]:555", "tunnel+tls+tcp://me@[::1]:555"),
        ("tls+tcp://[fe80::1]:555", "tunnel+tls+tcp://me@[fe80::1]:555"),
        ("unix:///run/x.sock", None),
    ],
)
def test_ports_have_routes(url, route):
    assert route_to(url, "me") == route


@pytest.mark.parametrize(
    "url",
    [
        "tls+tcp://10.1.2.3:555",
        "tunnel+tls+tcp://a@b:99999",
        "tunnel+unix://a@b:1",
        "tunnel+tls+tcp://b:1",
    ],
)
def test_other_addresses_have_none(url):
    assert parse(url) is None


class TestRecords:
    """What follows a handshake can be said by its two sides alone."""

    @pytest.fixture
    def sides(self):
        return self.pair()

    @staticmethod
    def pair(key=b"k"):
        return Records(key, b"other"), Records(b"other", key)

    def test_frames_arrive_as_they_were_sent_in_any_pieces(self, sides):
        sent = [(b"a", b""), (b"b", bytes(60_000)), (b"c", b"de" * 9000), (b"f", b"g")]
        for one, other in (sides, sides[::-1]):
            travels = b"".join(one.protect(sent))
            arrived = []
            for begin in range(0, len(travels), 9_991):
                arrived += map(bytes, other.feed(travels[begin : begin + 9_991]))
            assert arrived == [head + body for head, body in sent]

    @pytest.mark.parametrize("place", [0, 4, 8, -1])
    def test_one_that_was_changed_is_refused(self, sides, place):
        one, other = sides
        travels = bytearray(b"".join(one.protect([(b"OPEN", b"x")])))
        travels[place] ^= 1
        with pytest.raises(WireError):
            list(other.feed(travels + bytes(100)))

    @pytest.mark.parametrize(
        "said",
        [
            lambda one, other: (100).to_bytes(4, "little") + bytes(100),
            # one that comes again
            lambda one, other: b"".join(one.protect([PING])) * 2,
            # one that comes too early
            lambda one, other: one.protect([PING]) and b"".join(one.protect([PING])),
            # one that comes back
            lambda one, other: b"".join(other.protect([PING])),
            # one of another stream
            lambda one, other: b"".join(TestRecords.pair(b"l")[0].protect([PING])),
            # one that is shorter than its code
            lambda one, other: (3).to_bytes(4, "little") + b"abc",
        ],
        ids=["nobody's", "again", "too early", "back", "another stream's", "short"],
    )
    def test_one_that_the_other_side_did_not_send_now_is_refused(self, sides, said):
        with pytest.raises(WireError):
            list(sides[1].feed(said(*sides)))

    def test_nothing_is_kept_of_what_is_too_large(self, sides):
        with pytest.raises(WireError, match="300000 bytes"):
            list(sides[0].feed((300_000).to_bytes(4, "little")))
