"""State of one call in the pending table: which items wait, how many are finished.

The function, the arguments and the result sink of the same call are a :class:`fiber._tasks.call.Call`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from fiber._tasks.pending.ranges import Range

if TYPE_CHECKING:
    from fiber._tasks.pending.batching import Pace
    from fiber._tasks.pending.stragglers import Duplicates
    from fiber.model.job import Attempt


class SharedCount:
    """A count of units that all calls of a table update."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units = 0


class CallState:
    """State of one call; items wait as ranges, never one by one."""

    __slots__ = (
        "abandoned",
        "bytes_per_item",
        "chunk",
        "closed",
        "count",
        "duplicates",
        "finished",
        "history",
        "id",
        "is_over",
        "is_queued",
        "is_suspect_queued",
        "pace",
        "queued",
        "ready",
        "retry",
        "suspects",
        "tail",
        "total",
    )

    def __init__(
        self, call: int, *, chunk: int, retry: bool, pace: Pace, total: SharedCount
    ) -> None:
        self.id = call
        #: units that wait, of all calls together
        self.total = total
        #: items of one unit
        self.chunk = chunk
        #: False for at most once
        self.retry = retry
        #: how long its units take
        self.pace = pace
        #: mean size of one item's arguments, 0 where unknown
        self.bytes_per_item = 0.0
        #: True once no more items can come
        self.closed = False
        #: items known
        self.count = 0
        #: items accepted, abandoned or withdrawn
        self.finished = 0
        #: those of them that were abandoned
        self.abandoned = 0
        #: True once it is done or dropped; its entries may still run
        self.is_over = False
        #: ranges that wait
        self.ready: deque[Range] = deque()
        #: ranges whose units wait to travel alone
        self.suspects: deque[Range] = deque()
        #: units in both
        self.queued = 0
        #: first item of an unfilled last unit, which waits for the rest of it
        self.tail = 0
        #: deaths by the first item of the unit; suspects only
        self.history: dict[int, tuple[Attempt, ...]] = {}
        #: items that several workers hold, once there are any
        self.duplicates: Duplicates | None = None
        #: True while the fair queue has it for its ordinary work
        self.is_queued = False
        #: True while the fair queue has it for its suspects
        self.is_suspect_queued = False

    def units(self, start: int, stop: int) -> int:
        """How many units ``[start, stop)`` has; start is the first item of a unit."""
        return -(-(stop - start) // self.chunk)

    def grow(self, count: int, *, closed: bool) -> None:
        """Take items in; a unit that is not full waits until it is, or until the call is closed."""
        self.count += count
        self.closed = closed
        stop = self.count if closed else self.count - self.count % self.chunk
        start = self.tail
        if start < stop:
            self.tail = stop
            self._queue(self.units(start, stop))
            if self.ready and self.ready[-1][1] == start:
                start = self.ready.pop()[0]
            self.ready.append((start, stop))

    def put_back(self, start: int, stop: int) -> None:
        """Queue ``[start, stop)`` again, in front: nothing that waits was queued earlier."""
        self._queue(self.units(start, stop))
        self.ready.appendleft((start, stop))

    def suspect(self, start: int, stop: int) -> None:
        """Queue ``[start, stop)`` so that each of its units travels alone."""
        self._queue(self.units(start, stop))
        self.suspects.append((start, stop))

    def take(self, units: int) -> Range:
        """Take up to that many units from the first range that waits."""
        start, stop = self.ready[0]
        cut = start + units * self.chunk
        if cut < stop:
            self.ready[0] = (cut, stop)
            stop = cut
        else:
            self.ready.popleft()
        self._queue(-self.units(start, stop))
        return start, stop

    def take_suspect(self) -> Range:
        """Take one unit that must travel alone."""
        start, stop = self.suspects[0]
        cut = start + self.chunk
        if cut < stop:
            self.suspects[0] = (cut, stop)
            stop = cut
        else:
            self.suspects.popleft()
        self._queue(-1)
        return start, stop

    def waiting(self, start: int, stop: int) -> list[Range]:
        """The parts of ``[start, stop)`` that are in the ordinary queue."""
        return [
            (max(start, low), min(stop, high))
            for low, high in self.ready
            if max(start, low) < min(stop, high)
        ]

    def withdraw(self, start: int, stop: int) -> None:
        """Take ``[start, stop)`` out of the ordinary queue, as far as it is in it."""
        kept: deque[Range] = deque()
        for a_start, a_stop in self.ready:
            low, high = max(start, a_start), min(stop, a_stop)
            if low >= high:
                kept.append((a_start, a_stop))
                continue
            self._queue(-self.units(low, high))
            if a_start < low:
                kept.append((a_start, low))
            if high < a_stop:
                kept.append((high, a_stop))
        self.ready = kept

    def forget(self) -> None:
        """Drop all waiting items and their history."""
        self.is_over = True
        self.ready.clear()
        self.suspects.clear()
        self.history.clear()
        self.duplicates = None
        self._queue(-self.queued)

    def _queue(self, units: int) -> None:
        self.queued += units
        self.total.units += units
