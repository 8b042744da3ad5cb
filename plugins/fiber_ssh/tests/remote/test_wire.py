"""What agents and programs say to each other arrives in any pieces."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber_ssh.remote.wire import Data, Decoder, pack, pack_data


def plain(found):
    if isinstance(found, Data):
        return found.number, found.stream, found.content, found.offset
    return found


@given(st.lists(st.integers(1, 40), min_size=1))
def test_messages_and_output_arrive_however_they_are_cut(cuts):
    stream = pack({"op": "x", "text": "ünï"}) + pack_data(3, 1, b"a\0b", 17) + pack({"id": 1})
    decoder, found, start = Decoder(), [], 0
    for size in [*cuts, len(stream)]:
        found += [plain(one) for one in decoder.feed(stream[start : start + size])]
        start += size

    assert found == [{"op": "x", "text": "ünï"}, (3, 1, b"a\0b", 17), {"id": 1}]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!IB", 1 << 31, 0),
        struct.pack("!IB", 4, 9),
        struct.pack("!IB", 2, 1) + b"xx",
        struct.pack("!IB", 2, 0) + b"[]",
        struct.pack("!IB", 2, 0) + b"{]",
    ],
)
def test_what_makes_no_sense_is_an_error(data):
    with pytest.raises(ValueError):
        list(Decoder().feed(data))
