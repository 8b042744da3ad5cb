"""Frames are cut out of a stream wherever its pieces begin and end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._wire import frames
from fiber.exceptions import WireError

FRAMES = st.lists(st.binary(max_size=300), max_size=20)


def sent(frame: bytes) -> bytes:
    return b"".join(frames.stream_buffers(frame[:3], [frame[3:]])[0])


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def read(deframer: frames.Deframer, piece: bytes) -> list[bytes]:
    """As a socket does: into the gap where there is one, and no further."""
    received = []
    while piece:
        gap = deframer.gap
        if gap is None:
            received += deframer.feed(memoryview(piece))
            return received
        count = min(len(gap), len(piece))
        gap[:count] = piece[:count]
        frame = deframer.fill(count)
        received += [] if frame is None else [frame]
        piece = piece[count:]
    return received


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=30))
def test_all_frames_come_whole_and_in_order(received, cuts):
    deframer = frames.Deframer(300)
    pieces = cut_up(b"".join(map(sent, received)), cuts)
    assert [frame for piece in pieces for frame in read(deframer, piece)] == received
    assert deframer.gap is None


@given(st.lists(st.binary(), max_size=10), st.integers(0, 200))
def test_what_is_left_of_buffers_begins_where_the_kernel_stopped(buffers, count):
    whole = b"".join(buffers)
    assert b"".join(frames.unsent(buffers, min(count, len(whole)))) == whole[count:]


def test_a_frame_over_the_limit_is_refused_when_it_is_announced():
    deframer = frames.Deframer(100)
    deframer.feed(memoryview(sent(bytes(100))))
    with pytest.raises(WireError, match="a frame of 101 bytes is announced, 100 are the most"):
        deframer.feed(memoryview(frames.LENGTH.pack(101)))


def test_the_limit_may_be_raised_between_frames():
    deframer = frames.Deframer(10)
    assert deframer.feed(memoryview(sent(bytes(10)))) == [bytes(10)]
    deframer.limit = 1000
    assert deframer.feed(memoryview(sent(bytes(1000)))) == [bytes(1000)]


@pytest.mark.parametrize("size", [0, 1, 16 * 2**10 - 32, 16 * 2**10, 2**20])
def test_buffers_come_with_their_size(size):
    buffers, total = frames.stream_buffers(bytes(32), [bytes(size)])
    assert sum(map(len, buffers)) == total == 4 + 32 + size


def test_many_parts_are_no_more_than_a_kernel_gathers():
    buffers, total = frames.stream_buffers(bytes(32), [bytes(100)] * 5000)
    assert len(buffers) <= 512
    assert sum(map(len, buffers)) == total


def test_frames_may_be_written_to():
    (frame,) = frames.Deframer(10).feed(memoryview(sent(b"abc")))
    frame[0] = 0
