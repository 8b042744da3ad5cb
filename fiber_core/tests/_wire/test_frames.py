"""Frames: everything that fits the layout comes back as it was, and nothing else comes through."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._wire import frames
from fiber._wire.frames import HEADER, Assembler, Kind
from fiber.exceptions import WireError

KINDS = [kind for kind in Kind if kind is not Kind.PART]
MESSAGE_KINDS = [kind for kind in KINDS if kind >= Kind.CALL]
WHOLE = st.integers(0, 2**64 - 1)


def frame(kind, target=1, number=2, size=None, body=b"", ack=0):
    size = len(body) if size is None else size
    return frames.header(kind, ack=ack, target=target, id=number, size=size) + body


def frames_of(kind, target, number, segments, max_frame):
    """The frames of a message as the bytes that travel."""
    return [
        frame(kind_, target_, number_, size, frames.joined(pieces))
        for kind_, target_, number_, size, pieces in frames.split(
            kind, target, number, segments, max_frame=max_frame
        )
    ]


def peak_memory(action):
    """The most bytes that Python held while it ran."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestFrames:
    @given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), WHOLE, WHOLE, st.binary())
    def test_a_frame_is_read_as_it_was_written(self, kind, ack, target, number, body):
        read = frames.parse(frame(kind, target, number, body=body, ack=ack))

        assert (read.kind, read.ack, read.target, read.id) == (kind, ack, target, number)
        assert (read.size, bytes(read.body)) == (len(body), body)

    @pytest.mark.parametrize(
        "data, words",
        [
            (b"", "frame of 0 bytes is shorter than a header"),
            (frame(Kind.CALL)[:-1], "frame of 31 bytes is shorter than a header"),
            (b"XX" + frame(Kind.CALL)[2:], "frame begins with b'XX', expected b'FB'"),
            (b"FB\x09" + frame(Kind.CALL)[3:], "frame of protocol version 9, this fiber speaks 1"),
            (b"FB\x01\xfe" + frame(Kind.CALL)[4:], "frame of unknown kind 254"),
            (frame(Kind.CALL, size=2, body=b"abc"), "frame has 3 bytes of body, its message 2"),
        ],
    )
    def test_the_error_for_a_frame_has_the_fault(self, data, words):
        with pytest.raises(WireError, match=words):
            frames.parse(data)
        assert frames.cast(data, 1) is None

    @given(
        kind=st.sampled_from([Kind.CAST, Kind.CALL, Kind.PART]),
        target=st.integers(1, 2),
        missing=st.integers(0, 1),
        body=st.binary(),
    )
    def test_a_thread_that_waits_sees_whole_casts_for_its_target_alone(
        self, kind, target, missing, body
    ):
        seen = frames.cast(frame(kind, target, size=len(body) + missing, body=body, ack=7), 1)
        assert seen == ((7, body) if (kind, target, missing) == (Kind.CAST, 1, 0) else None)


class TestSplitting:
    @given(
        kind=st.sampled_from(MESSAGE_KINDS),
        segments=st.lists(st.binary(max_size=200), max_size=12),
        room=st.integers(1, 64),
    )
    def test_a_message_of_any_segments_arrives_whole_and_in_frames_that_fit(
        self, kind, segments, room
    ):
        sent = frames_of(kind, 3, 4, segments, HEADER.size + room)
        assert all(len(data) <= HEADER.size + room for data in sent)
        assert len(sent) == max(1, -(-sum(map(len, segments)) // room))

        assembler = Assembler()
        *before, last = [assembler.feed(frames.parse(data)) for data in sent]

        assert before == [None] * (len(sent) - 1)
        assert (last.kind, last.target, last.id) == (kind, 3, 4)
        assert bytes(last.body) == b"".join(segments)

    @given(
        bodies=st.lists(st.binary(min_size=1, max_size=300), min_size=2, max_size=8),
        room=st.integers(1, 40),
        order=st.randoms(use_true_random=False),
    )
    def test_messages_may_be_interleaved_in_any_way(self, bodies, room, order):
        queues = [
            frames_of(Kind.CALL, 1, number, [body], HEADER.size + room)
            for number, body in enumerate(bodies)
        ]
        assembler, arrived = Assembler(), {}
        while any(queues):
            message = assembler.feed(frames.parse(order.choice([q for q in queues if q]).pop(0)))
            if message is not None:
                arrived[message.id] = bytes(message.body)

        assert arrived == dict(enumerate(bodies))

    def test_nothing_is_copied_when_a_message_is_cut(self):
        segment = bytearray(b"a" * 100)
        cut = list(frames.split(Kind.CALL, 1, 1, [segment], max_frame=HEADER.size + 40))
        segment[99] = ord("z")
        assert frames.joined(piece for *_, pieces in cut for piece in pieces)[-1:] == b"z"


class TestAssembling:
    @pytest.mark.parametrize(
        "sent, words",
        [
            ([frame(Kind.PART, 1, 7, 0, b"x")], "part of message 7, which never began"),
            ([frame(Kind.CALL, 1, 7, 5)], "message 7 begins with an empty frame"),
            (
                [frame(Kind.CALL, 1, 7, 5, b"ab"), frame(Kind.PART, 1, 7, 3, b"x")],
                "part of message 7 at 3, expected 2 of 5",
            ),
            (
                [frame(Kind.CALL, 1, 7, 5, b"ab"), frame(Kind.PART, 1, 7, 2, b"cdef")],
                "part of message 7 at 2, expected 2 of 5",
            ),
            (
                [frame(Kind.CALL, 1, 7, 5, b"ab"), frame(Kind.PART, 1, 7, 2)],
                "part of message 7 at 2, expected 2 of 5",
            ),
            (
                [frame(Kind.CALL, 1, 7, 5, b"ab"), frame(Kind.PART, 2, 7, 2, b"cde")],
                "part of message 7, which never began",
            ),
        ],
    )
    def test_parts_that_do_not_fit_are_refused(self, sent, words):
        assembler = Assembler()
        with pytest.raises(WireError, match=words):
            for data in sent:
                assembler.feed(frames.parse(data))

    def test_a_message_whose_sender_was_interrupted_gives_way_to_the_next_of_its_number(self):
        assembler = Assembler()
        for data in (frame(Kind.CALL, 1, 7, 4, b"xx"), frame(Kind.CALL, 1, 7, 3, b"a")):
            assert assembler.feed(frames.parse(data)) is None
        message = assembler.feed(frames.parse(frame(Kind.PART, 1, 7, 1, b"bc")))
        assert bytes(message.body) == b"abc"

    @pytest.mark.parametrize(
        "begun, left",
        [
            ([(1, 1), (2, 1), (3, 1), (4, 1)], [2, 3, 4]),
            # the one that grows may be of any size, as long as no other one does
            ([(1, 60), (2, 1000), (3, 40), (4, 40)], [3, 4]),
            ([(1, 60), (2, 40), (3, 41), (2, 500)], [2, 3]),
            ([(1, 40), (2, 500), (1, 1)], [1]),
        ],
    )
    def test_of_unfinished_messages_too_many_or_too_large_the_oldest_go(
        self, monkeypatch, begun, left
    ):
        monkeypatch.setattr(frames, "MAX_OTHERS", 100, raising=False)
        assembler, sizes = Assembler(max_partial=3), {}
        for number, size in begun:
            kind, at = (Kind.PART, sizes[number]) if number in sizes else (Kind.CALL, 2000)
            assembler.feed(frames.parse(frame(kind, 1, number, at, b"a" * size)))
            sizes[number] = sizes.get(number, 0) + size

        for number, size in sizes.items():
            rest = frames.parse(frame(Kind.PART, 1, number, size, bytes(2000 - size)))
            if number in left:
                assert len(assembler.feed(rest).body) == 2000
            else:
                with pytest.raises(WireError, match="never began"):
                    assembler.feed(rest)

    def test_an_announced_size_costs_no_memory(self):
        parsed = frames.parse(frame(Kind.CALL, 1, 1, 2**62, b"x" * 1000))
        assert peak_memory(lambda: Assembler().feed(parsed)) < 100_000


class TestObjectBodies:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\x01",
            struct.pack("<I", 0),
            struct.pack("<I", 2**32 - 1),
            struct.pack("<IQ", 0, 1),
            struct.pack("<IQ", 0, 2**64 - 1),
            struct.pack("<IQQ", 1, 2**64 - 1, 2**64 - 1) + bytes(40),
            struct.pack("<IQ", 0, 1) + b"ab",
            struct.pack("<IQ", 3, 0),
        ],
    )
    def test_lengths_that_do_not_add_up_are_refused(self, body):
        with pytest.raises(WireError, match="object body"):
            frames.unpack(memoryview(body))

    @given(st.binary(max_size=200))
    def test_any_bytes_are_an_object_body_or_a_wire_error(self, body):
        try:
            pickled, views = frames.unpack(memoryview(body))
        except WireError:
            return
        assert len(pickled) + sum(len(view) for view in views) < len(body)

    def test_a_count_of_buffers_that_cannot_be_costs_no_memory(self):
        body = memoryview(struct.pack("<I", 2**32 - 1) + bytes(1000))

        def refuse():
            with pytest.raises(WireError):
                frames.unpack(body)

        assert peak_memory(refuse) < 100_000


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


@pytest.mark.parametrize(
    "size, count", [(0, 1), (16 * 2**10 - 32, 1), (16 * 2**10, 1), (2**20, 1), (100, 5000)]
)
def test_buffers_come_with_their_size_and_are_no_more_than_a_kernel_gathers(size, count):
    buffers, total = frames.stream_buffers(bytes(32), [bytes(size)] * count)
    assert sum(map(len, buffers)) == total == 4 + 32 + size * count
    assert len(buffers) <= 512
