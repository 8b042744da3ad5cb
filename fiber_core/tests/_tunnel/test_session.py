"""A connection's bytes arrive in order and once, wherever its streams break."""

import random

import pytest

from fiber._tunnel.crossing import ABORT, PING, WINDOW, Session
from fiber.exceptions import WireError


def carry(frames, to):
    """Hand frames to the other side; what it has for its connection."""
    return b"".join(to.feed(b"".join(frames)))


def test_bytes_arrive():
    one, other = Session(), Session()
    assert carry(one.put(b"abc") + one.put(b"def"), other) == b"abcdef"
    assert other.received == 6


def test_they_may_come_in_any_pieces():
    one, other = Session(), Session()
    data = b"".join(one.put(b"abc") + one.put(b"def") + one.finish())
    got = b"".join(piece for n in range(len(data)) for piece in other.feed(data[n : n + 1]))
    assert got == b"abcdef"
    assert other.ended


def test_what_was_lost_is_sent_again():
    one, other = Session(), Session()
    carry(one.put(b"abc"), other)
    one.put(b"lost")
    one.put(b"too")
    assert carry(one.resume(other.received), other) == b"losttoo"


def test_what_arrived_is_not():
    one, other = Session(), Session()
    carry(one.put(b"abc"), other)
    assert carry(one.resume(other.received), other) == b""


def test_half_a_frame_is_sent_again_whole():
    one, other = Session(), Session()
    frames = b"".join(one.put(b"abcdef"))
    assert list(other.feed(frames[:-2])) == []
    other.resume(0)
    assert carry(one.resume(other.received), other) == b"abcdef"


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
