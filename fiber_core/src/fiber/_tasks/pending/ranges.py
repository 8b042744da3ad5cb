"""Sets of whole numbers kept as sorted ranges, for the rare look-ups of single items."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

#: items ``[start, stop)``
Range = tuple[int, int]


class RangeSet:
    """A set of ints held as disjoint ranges that do not touch."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._stops, strict=True)

    def add(self, start: int, stop: int) -> None:
        """Add ``[start, stop)``."""
        if start >= stop:
            return
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        if low < high:
            start = min(start, self._starts[low])
            stop = max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]

    def within(self, start: int, stop: int) -> list[Range]:
        """The parts of ``[start, stop)`` that are in the set."""
        found = []
        at = bisect_right(self._stops, start)
        while at < len(self._starts) and self._starts[at] < stop:
            found.append((max(start, self._starts[at]), min(stop, self._stops[at])))
            at += 1
        return found

    def outside(self, start: int, stop: int) -> list[Range]:
        """The parts of ``[start, stop)`` that are not in the set."""
        found = []
        for inner_start, inner_stop in self.within(start, stop):
            if start < inner_start:
                found.append((start, inner_start))
            start = inner_stop
        if start < stop:
            found.append((start, stop))
        return found
