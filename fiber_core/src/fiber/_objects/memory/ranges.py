"""Which parts of a stretch of memory are free; pure."""

from __future__ import annotations

import bisect


class Ranges:
    """Hands out parts of ``size`` bytes, the first that is large enough.

    Args:
        size: bytes in all.
        begin: bytes at the beginning that are not to be had.
    """

    def __init__(self, size: int, begin: int = 0) -> None:
        self._all = [(begin, size)]
        # begin and end of each, in order, none touching the next
        self._free = list(self._all)

    @property
    def is_whole(self) -> bool:
        """True where nothing is handed out."""
        return self._free == self._all

    def take(self, size: int) -> int | None:
        """Where a part of at least one byte begins from now on; None where there is no room."""
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                left = [(begin + size, end)] if begin + size < end else []
                self._free[index : index + 1] = left
                return begin
        return None

    def give(self, begin: int, size: int) -> None:
        """Take a part back that was handed out."""
        end = begin + size
        index = bisect.bisect(self._free, (begin, end))
        before = self._free[index - 1 : index] if index else []
        after = self._free[index : index + 1]
        first, last = index, index
        if before and before[0][1] == begin:
            begin, first = before[0][0], index - 1
        if after and after[0][0] == end:
            end, last = after[0][1], index + 1
        self._free[first:last] = [(begin, end)]
