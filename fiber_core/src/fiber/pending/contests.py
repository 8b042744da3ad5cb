"""Items that more than one worker may be running: the first result counts.

This comes from revokes that nobody answered and from nothing else, so a call has a Contest only
after its first one, and calls without one pay nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber.pending.ranges import Range, RangeSet

if TYPE_CHECKING:
    from fiber.pending.workers import Entry


class Contest:
    """The contested items of one call."""

    __slots__ = ("_contested", "_holders", "_settled", "_tainted")

    def __init__(self) -> None:
        #: items that were ever queued a second time
        self._contested = RangeSet()
        #: those of them that are accepted or abandoned
        self._settled = RangeSet()
        #: those of them that a lost worker may have begun while another one held them too
        self._tainted = RangeSet()
        #: live entries with contested items
        self._holders: dict[int, Entry] = {}

    def open(self, entry: Entry, start: int, stop: int) -> list[Range]:
        """Let ``[start, stop)`` of an entry go elsewhere as well.

        Returns:
            What of it to queue: the parts that have no result yet.
        """
        self._contested.add(start, stop)
        self._holders[entry.id] = entry
        return self._settled.outside(start, stop)

    def given(self, entry: Entry) -> None:
        """Note an entry that was dispatched."""
        if self._contested.within(entry.start, entry.stop):
            self._holders[entry.id] = entry

    def gone(self, entry: Entry) -> None:
        """Note an entry that is finished or lost."""
        self._holders.pop(entry.id, None)

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
        held = RangeSet((entry.done, entry.stop) for entry in self._holders.values())
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
