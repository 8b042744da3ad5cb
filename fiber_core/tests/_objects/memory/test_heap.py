"""Allocations of a process: side by side in arenas, large ones by themselves; read from elsewhere."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fiber._objects.memory import heap as protocol
from fiber._objects.memory.heap import MAX_BYTES, READ, WRITE, FreeList, Heap, Memory, Op
from fiber.exceptions import PeerLostError
from wire_world import until

# hypothesis makes up many orders of events, which takes a busy machine long
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def heap(tmp_path):
    return Heap(lambda: tmp_path, "maker")


def test_small_allocations_are_side_by_side_and_do_not_touch(heap):
    allocations = [heap.allocate(size) for size in (1, 64, 65, 0, 8)]
    assert len({allocation.arena for allocation in allocations}) == 1
    for number, allocation in enumerate(allocations, 1):
        allocation.view[:] = bytes([number]) * allocation.size
    assert [bytes(allocation.view) for allocation in allocations] == [
        bytes([number]) * allocation.size for number, allocation in enumerate(allocations, 1)
    ]
    assert all(allocation.begin % 64 == 0 for allocation in allocations)


def test_an_allocation_is_all_zeros_whatever_was_there_before(heap):
    first = heap.allocate(100)
    first.view[:] = b"x" * 100
    heap.free(first)
    again = heap.allocate(100)
    assert again.begin == first.begin
    assert bytes(again.view) == bytes(100)


def test_a_large_allocation_has_an_arena_that_is_closed_when_it_is_freed(heap):
    large = heap.allocate(10**6)
    assert heap.allocate(10).arena is not large.arena
    heap.free(large)
    assert not large.arena._closing.alive


def test_arenas_go_with_their_last_allocation_but_one_is_kept(heap):
    allocations = [heap.allocate(2**15) for _ in range(20)]
    arenas = {allocation.arena for allocation in allocations}
    assert len(arenas) == 3
    for allocation in allocations:
        heap.free(allocation)
    assert sum(one._closing.alive for one in arenas) == 1


def test_many_small_allocations_take_few_descriptors(heap):
    before = len(list(Path("/dev/fd").iterdir()))
    allocations = [heap.allocate(8) for _ in range(3000)]
    assert len(list(Path("/dev/fd").iterdir())) - before <= 4
    assert len(allocations) == 3000


# -- free ranges


class Parts(RuleBasedStateMachine):
    """Against a byte map."""

    def __init__(self):
        super().__init__()
        self.free_list = FreeList(64, begin=4)
        self.used = bytearray(b"\1" * 4 + b"\0" * 60)
        self.parts = []

    @rule(size=st.integers(1, 20))
    def allocate(self, size):
        begin = self.free_list.allocate(size)
        assert (begin is None) == (bytes(size) not in bytes(self.used))
        if begin is not None:
            assert not any(self.used[begin : begin + size])
            self.used[begin : begin + size] = b"\1" * size
            self.parts.append((begin, size))

    @rule(data=st.data())
    def free(self, data):
        if self.parts:
            index = data.draw(st.integers(0, len(self.parts) - 1))
            begin, size = self.parts.pop(index)
            self.used[begin : begin + size] = bytes(size)
            self.free_list.free(begin, size)

    @invariant()
    def is_whole_where_all_came_back(self):
        assert self.free_list.is_whole == (not self.parts)


TestParts = Parts.TestCase
TestParts.settings = settings(max_examples=50, stateful_step_count=30)


# -- read and written from another host


def block(node, size):
    return node.make(Memory, size)


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
def test_parts_are_written_in_order_and_read_by_everybody(owner, other, third, parts):
    mine = block(owner, 64)
    theirs = other.remote(mine)
    expected = bytearray(64)
    for begin, data in parts:
        expected[begin : begin + len(data)] = data
    theirs.write(parts)
    assert theirs.read(0, 64) == third.remote(mine).read(0, 64) == expected
    assert theirs.read(9, 0) == b""
    assert bytes(mine.view) == expected


MORE_THAN_A_MESSAGE = READ.pack(Op.READ, 0, MAX_BYTES + 1)


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
        MORE_THAN_A_MESSAGE,
    ],
)
def test_a_peer_that_sends_nonsense_is_cut_off_and_others_go_on(owner, other, third, message):
    mine = block(owner, 2 * MAX_BYTES if message == MORE_THAN_A_MESSAGE else 64)
    good = third.remote(mine)
    bad = other.remote(mine)
    pending = bad.call([message])
    assert pending.wait(20)
    with pytest.raises(PeerLostError):
        pending.result()
    until(lambda: bad.is_lost)
    good.write([(0, b"ok")])
    assert good.read(0, 2) == b"ok"


def test_a_makers_death_is_an_error(owner, other):
    theirs = other.remote(block(owner, 8))
    owner.die()
    until(lambda: theirs.is_lost)
    for use in (lambda: theirs.read(0, 8), lambda: theirs.write([(0, b"x")])):
        with pytest.raises(PeerLostError, match="the process that this memory lives in is gone"):
            use()


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


def test_operations_are_those_of_memory():
    assert {int(op) for op in protocol.Op} <= set(range(96, 112))
