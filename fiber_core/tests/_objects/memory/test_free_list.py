"""Free ranges of memory: first fit, and neighbours that join."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fiber._objects.memory.heap import FreeList


def test_parts_are_handed_out_from_the_beginning():
    free_list = FreeList(100, begin=10)
    assert [free_list.allocate(40), free_list.allocate(50), free_list.allocate(1)] == [10, 50, None]


def test_neighbours_that_come_back_become_one():
    free_list = FreeList(90)
    parts = [free_list.allocate(30) for _ in range(3)]
    for part in (parts[0], parts[2], parts[1]):
        free_list.free(part, 30)
    assert free_list.is_whole
    assert free_list.allocate(90) == 0


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


@given(st.lists(st.integers(1, 10), max_size=10))
def test_all_that_is_given_back_can_be_had_again(sizes):
    free_list = FreeList(100)
    parts = [(free_list.allocate(size), size) for size in sizes]
    for begin, size in parts:
        free_list.free(begin, size)
    assert free_list.allocate(100) == 0
