"""A block of memory, read and written from another host."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiber._objects.memory import heap as protocol
from fiber._objects.memory.heap import MAX_BYTES, READ, WRITE, Memory, Op
from fiber.exceptions import PeerLostError
from wire_world import until


def block(node, size):
    made = Memory(node.store, size)
    made.hold(0)
    return made


def test_what_is_written_is_read_by_everybody(owner, other, third):
    mine = block(owner, 10)
    other.remote(mine).write([(2, b"abc"), (7, b"z")])
    assert bytes(mine.view) == b"\0\0abc\0\0z\0\0"
    assert third.remote(mine).read(1, 8) == b"\0abc\0\0z\0"


def test_nothing_is_read_and_written(owner, other):
    theirs = other.remote(block(owner, 0))
    theirs.write([(0, b"")])
    assert theirs.read(0, 0) == b""


def test_much_goes_in_parts(owner, other):
    size = 10 * MAX_BYTES + 5
    mine = block(owner, size)
    theirs = other.remote(mine)
    data = bytes(range(251)) * (size // 251) + bytes(size % 251)
    theirs.write([(0, data)])
    assert bytes(mine.view) == data
    assert theirs.read(0, size) == data


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=24)), max_size=12))
def test_parts_are_written_in_order(owner, other, parts):
    mine = block(owner, 64)
    theirs = other.remote(mine)
    expected = bytearray(64)
    for begin, data in parts:
        expected[begin : begin + len(data)] = data
    theirs.write(parts)
    assert theirs.read(0, 64) == expected
    assert bytes(mine.view) == expected


@pytest.mark.parametrize(
    "message",
    [
        READ.pack(Op.READ, 0, 65),
        READ.pack(Op.READ, 64, 1),
        READ.pack(Op.READ, 2**64 - 1, 2),
        WRITE.pack(Op.WRITE, 60) + b"12345",
        WRITE.pack(Op.WRITE, 2**64 - 1) + b"1",
        READ.pack(Op.READ, 0, 64)[:-1],
        bytes([111]),
    ],
)
def test_a_peer_that_reads_beyond_the_end_is_cut_off_and_others_go_on(owner, other, third, message):
    mine = block(owner, 64)
    good = third.remote(mine)
    bad = other.remote(mine)
    pending = bad.call([message])
    assert pending.wait(20)
    with pytest.raises(PeerLostError):
        pending.result()
    until(lambda: bad.is_lost)
    good.write([(0, b"ok")])
    assert good.read(0, 2) == b"ok"


def test_a_peer_that_reads_more_than_one_message_may_have_is_cut_off(owner, other):
    mine = block(owner, 2 * MAX_BYTES)
    pending = other.remote(mine).call([READ.pack(Op.READ, 0, MAX_BYTES + 1)])
    assert pending.wait(20)
    with pytest.raises(PeerLostError):
        pending.result()


def test_a_makers_death_is_an_error(owner, other):
    theirs = other.remote(block(owner, 8))
    owner.die()
    until(lambda: theirs.is_lost)
    with pytest.raises(PeerLostError, match="the process that this memory lives in is gone"):
        theirs.read(0, 8)
    with pytest.raises(PeerLostError, match="the process that this memory lives in is gone"):
        theirs.write([(0, b"x")])


def test_the_block_is_free_when_its_last_holder_let_it_go(owner, other):
    mine = block(owner, 8)
    theirs = other.remote(mine)
    begin = mine.begin
    mine.drop(0)
    assert theirs.read(0, 8) == bytes(8)
    assert block(owner, 8).begin != begin
    theirs.drop(0)
    until(lambda: mine._allocation is None)
    assert block(owner, 8).begin == begin


def test_one_that_was_freed_is_an_error(owner, other):
    mine = block(owner, 8)
    address = mine.address
    mine.drop(0)
    theirs = other.store.hold(address, 0, 0)
    with pytest.raises(PeerLostError, match="no longer exists"):
        theirs.read(0, 8)


def test_a_pickle_in_flight_keeps_it(owner, other):
    mine = block(owner, 8)
    mine.issue(7, 0, 1)
    address = mine.address
    mine.drop(0)
    theirs = other.store.hold(address, 0, 7)
    assert theirs.read(0, 8) == bytes(8)


def test_operations_are_those_of_memory():
    assert {int(op) for op in protocol.Op} <= set(range(96, 112))
