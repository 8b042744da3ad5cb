"""Bytes of processes become lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.supervisor.output import LineBuffer, LinePrefix, LineTail

PIECES = st.lists(st.binary(max_size=12) | st.sampled_from([b"a\n", b"\n", b"b", b"\r", b"c\nd"]))


def test_whole_lines_pass_and_the_rest_waits():
    lines = LineBuffer()

    assert lines.feed(b"one\ntw") == b"one\n"
    assert lines.partial
    assert lines.feed(b"o\nthree\n") == b"two\nthree\n"
    assert not lines.partial


def test_the_beginning_of_a_line_can_be_had():
    lines = LineBuffer()
    lines.feed(b"50%")

    assert lines.flush() == b"50%"
    assert lines.flush() == b""
    assert lines.feed(b" done\n") == b" done\n"


def test_a_line_without_end_passes_in_pieces():
    lines = LineBuffer(longest=10)

    assert lines.feed(b"x" * 10) == b""
    assert lines.feed(b"x") == b"x" * 11


@given(PIECES)
def test_no_byte_is_lost_or_changed(pieces):
    lines = LineBuffer(longest=20)
    out = b"".join(map(lines.feed, pieces)) + lines.flush()

    assert out == b"".join(pieces)


@pytest.mark.parametrize(
    "pieces,out",
    [
        ([b"a\nb\n"], b"[x] a\n[x] b\n"),
        ([b"a", b"b\n", b"c"], b"[x] ab\n[x] c"),
        ([b"\n", b"\n"], b"[x] \n[x] \n"),
        ([b"10%\r", b"20%\r"], b"[x] 10%\r20%\r"),
        ([b""], b""),
    ],
)
def test_each_line_gets_its_prefix_once(pieces, out):
    prefix = LinePrefix(b"[x] ")

    assert b"".join(map(prefix.feed, pieces)) == out


@given(PIECES)
def test_without_a_prefix_bytes_stay_as_they_are(pieces):
    prefix = LinePrefix(b"")

    assert b"".join(map(prefix.feed, pieces)) == b"".join(pieces)


def test_the_tail_has_the_last_lines():
    tail = LineTail(2)
    tail.feed(b"one\ntwo\nthr")
    tail.feed(b"ee\n")

    assert tail.lines() == ("two", "three")


def test_the_tail_has_the_line_that_was_not_ended():
    tail = LineTail(3)
    tail.feed(b"one\r\nha")
    tail.feed(b"lf")

    assert tail.lines() == ("one", "half")


def test_the_tail_is_bounded_in_both_directions():
    tail = LineTail(2, width=10)
    for _ in range(100):
        tail.feed(b"y" * 50)

    assert tail.lines() == ("y" * 10,)


def test_the_tail_is_text_whatever_was_written():
    tail = LineTail(1)
    tail.feed(b"\xff\xfe ok\n")

    assert tail.lines() == ("\ufffd\ufffd ok",)


@given(PIECES)
def test_the_tail_is_the_same_for_all_pieces(pieces):
    whole, parts = LineTail(3), LineTail(3)
    whole.feed(b"".join(pieces))
    for piece in pieces:
        parts.feed(piece)

    assert parts.lines() == whole.lines()
