"""Parts of a stretch of memory."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fiber._objects.memory.block import Ranges


def test_parts_are_handed_out_from_the_beginning():
    ranges = Ranges(100, begin=10)
    assert [ranges.take(40), ranges.take(50), ranges.take(1)] == [10, 50, None]


def test_neighbours_that_come_back_become_one():
    ranges = Ranges(90)
    parts = [ranges.take(30) for _ in range(3)]
    for part in (parts[0], parts[2], parts[1]):
        ranges.give(part, 30)
    assert ranges.is_whole
    assert ranges.take(90) == 0


class Parts(RuleBasedStateMachine):
    """Against a byte map."""

    def __init__(self):
        super().__init__()
        self.ranges = Ranges(64, begin=4)
        self.used = bytearray(b"\1" * 4 + b"\0" * 60)
        self.parts = []

    @rule(size=st.integers(1, 20))
    def take(self, size):
        begin = self.ranges.take(size)
        assert (begin is None) == (bytes(size) not in bytes(self.used))
        if begin is not None:
            assert not any(self.used[begin : begin + size])
            self.used[begin : begin + size] = b"\1" * size
            self.parts.append((begin, size))

    @rule(data=st.data())
    def give(self, data):
        if self.parts:
            index = data.draw(st.integers(0, len(self.parts) - 1))
            begin, size = self.parts.pop(index)
            self.used[begin : begin + size] = bytes(size)
            self.ranges.give(begin, size)

    @invariant()
    def is_whole_where_all_came_back(self):
        assert self.ranges.is_whole == (not self.parts)


TestParts = Parts.TestCase


@given(st.lists(st.integers(1, 10), max_size=10))
def test_all_that_is_given_back_can_be_had_again(sizes):
    ranges = Ranges(100)
    parts = [(ranges.take(size), size) for size in sizes]
    for begin, size in parts:
        ranges.give(begin, size)
    assert ranges.take(100) == 0
