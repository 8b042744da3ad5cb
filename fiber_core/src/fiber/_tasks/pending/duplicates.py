"""Items that more than one worker may be running: the first result counts.

This comes from revokes that nobody answered and from nothing else, so a call has a Contest only
after its first one, and calls without one pay nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fiber._tasks.pending.ranges import Range, RangeSet

if TYPE_CHECKING:
    from fiber._tasks.pending.workers import Entry


class Contest:
    """The contested items of one call."""

    __slots__ = ("_contested", "_holders", "_longest", "_settled", "_tainted")

    def __init__(self) -> None:
        #: items that were ever queued a second time
        self._contested = RangeSet()
        #: those of them that are accepted or abandoned
        self._settled = RangeSet()
        #: those of them that a lost worker may have begun while another one held them too
        self._tainted = RangeSet()
        #: live entries with contested items, by their first item: with many workers there are many
        self._holders: list[tuple[int, int, Entry]] = []
        #: items of the longest of them so far
        self._longest = 0

    def open(self, entry: Entry, start: int, stop: int) -> list[Range]:
        """Let ``[start, stop)`` of an entry go elsewhere as well.

        Returns:
            What of it to queue: the parts that have no result yet.
        """
        self._contested.add(start, stop)
        self._hold(entry)
        return self._settled.outside(start, stop)

    def given(self, entry: Entry) -> None:
        """Note an entry that was dispatched."""
        if self._contested.within(entry.start, entry.stop):
            self._hold(entry)

    def gone(self, entry: Entry) -> None:
        """Note an entry that is finished or lost."""
        at = self._find(entry)
        if self._has(at, entry):
            del self._holders[at]

    def settle(self, start: int, stop: int) -> list[Range]:
        """Results for ``[start, stop)`` came, or it is given up; returns the parts that are new."""
        fresh = self._settled.outside(start, stop)
        for part in self._contested.within(start, stop):
            self._settled.add(*part)
        return fresh

    def orphans(self, start: int, stop: int, *, taint: bool) -> list[Range]:
        """The parts of ``[start, stop)`` that have no result and no other holder.

        Args:
            start: first item that a worker no longer has.
            stop: one past the last.
            taint: True where that worker may have begun them, so that what others still hold
                must travel alone if it ever comes back.
        """
        held = RangeSet((entry.done, entry.stop) for entry in self._near(start, stop))
        alone = []
        for part in self._settled.outside(start, stop):
            alone += held.outside(*part)
            if taint:
                for kept in held.within(*part):
                    self._tainted.add(*kept)
        return alone

    def split(self, start: int, stop: int) -> tuple[list[Range], list[Range]]:
        """``[start, stop)`` as what must travel alone and what need not."""
        return self._tainted.within(start, stop), self._tainted.outside(start, stop)

    def _find(self, entry: Entry) -> int:
        # numbers of entries differ, so that entries themselves are never compared
        return bisect_left(self._holders, (entry.start, entry.id))

    def _has(self, at: int, entry: Entry) -> bool:
        return at < len(self._holders) and self._holders[at][2] is entry

    def _hold(self, entry: Entry) -> None:
        if not self._has(self._find(entry), entry):
            insort(self._holders, (entry.start, entry.id, entry))
            self._longest = max(self._longest, entry.stop - entry.start)

    def _near(self, start: int, stop: int) -> Iterator[Entry]:
        """Live entries that may have items of ``[start, stop)``."""
        holders = self._holders
        at = bisect_left(holders, (start - self._longest,))
        while at < len(holders) and holders[at][0] < stop:
            yield holders[at][2]
            at += 1
