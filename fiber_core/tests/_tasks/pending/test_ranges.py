from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks.pending.ranges import RangeSet

spans = st.tuples(st.integers(0, 30), st.integers(0, 30))


def items(ranges):
    return {item for start, stop in ranges for item in range(start, stop)}


@given(added=st.lists(spans), asked=spans)
def test_it_answers_as_a_set_of_ints_does(added, asked):
    ranges = RangeSet(added)
    expected = items(added)
    start, stop = asked
    assert items(ranges) == expected
    assert bool(ranges) == bool(expected)
    assert items(ranges.within(start, stop)) == expected & set(range(start, stop))
    assert items(ranges.outside(start, stop)) == set(range(start, stop)) - expected


@given(added=st.lists(spans))
def test_ranges_are_sorted_and_never_touch(added):
    flat = [bound for span in RangeSet(added) for bound in span]
    assert flat == sorted(set(flat))
