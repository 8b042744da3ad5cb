"""What processes tell each other about a block."""

import pytest

from fiber._objects.blocks import block
from fiber._objects.memory.backing import Location
from fiber.exceptions import WireError


def test_a_place_comes_back():
    place = Location("fd:17", 4711, 2**40, bytes(range(16)))
    assert Location.unpack(place.packed()) == place
    message = block.has(place)
    assert message[0] == block.Op.HAS
    assert block.read_has(message) == place


@pytest.mark.parametrize("body", [b"", b"\0" * 31, b"\0" * 32 + b"\xff"])
def test_what_is_no_place_is_an_error(body):
    with pytest.raises(WireError):
        Location.unpack(body)


def test_a_digest_is_of_bytes_and_their_position():
    same = block.piece_digest(0, b"abc"), block.piece_digest(0, memoryview(b"abc"))
    others = block.piece_digest(1, b"abc"), block.piece_digest(0, b"abd")
    assert len(set(same)) == 1
    assert len({*same, *others}) == 3
    assert len(same[0]) == block.DIGEST
