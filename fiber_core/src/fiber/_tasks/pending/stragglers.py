"""Who sits on work behind a slow unit, and which revokes were not answered in time.

Items that more than one worker may be running: the first result counts.

This comes from revokes that nobody answered and from nothing else, so a call has a Contest only
after its first one, and calls without one pay nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fiber._tasks.pending.policy import RevokePolicy
from fiber._tasks.pending.ranges import Range, RangeSet
from fiber._tasks.pending.workers import Asked, Entry, Worker

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


class Watch:
    """The moments at which work is asked back, or goes elsewhere as well.

    A worker that gets work to keep behind its current unit is noted once, in a heap by the moment
    at which that unit will have run too long. Reports do not touch the heap: a worker that made
    progress is found out, and noted anew, when its moment has come and an idle worker wants work.
    """

    __slots__ = ("_policy", "_serial", "_workers", "asked", "heap", "waiting")

    def __init__(self, policy: RevokePolicy) -> None:
        self._policy = policy
        self.heap: list[tuple[float, int, Worker]] = []
        self._serial = 0
        self._workers = 0
        #: revokes by the moment at which patience ends; what was answered since is skipped
        self.asked: deque[tuple[float, Entry]] = deque()
        #: how many entries were asked back and wait for the answer or the end of patience
        self.waiting = 0

    def note(self, worker: Worker, workers: int) -> None:
        """Watch a worker that holds work behind its current unit; one of so many workers."""
        if worker.is_watched:
            return
        self._workers = workers
        worker.is_watched = True
        self._push(self._due(worker), worker)
        if len(self.heap) > 2 * workers + 64:
            # Lost workers leave the heap when their moment comes; while nobody is idle it never does.
            self.heap = [item for item in self.heap if not item[2].is_gone]
            heapq.heapify(self.heap)

    def victims(self, now: float, idle: int) -> Iterator[Worker]:
        """Workers whose unit has run too long, while fewer answers are awaited than are idle."""
        heap = self.heap
        while heap and heap[0][0] <= now and self.waiting < idle:
            worker = heapq.heappop(heap)[2]
            worker.is_watched = False
            if worker.is_gone or not worker.has_unbegun or self._is_asked(worker):
                continue
            due = self._due(worker)
            if due > now:
                worker.is_watched = True
                self._push(due, worker)
            else:
                yield worker

    def ask(self, entry: Entry, now: float) -> None:
        """Note that an entry is asked back."""
        entry.asked = Asked.WAITING
        self.waiting += 1
        patience = self._policy.patience + self._policy.each * self._workers
        self.asked.append((now + patience, entry))

    def settle(self, entry: Entry, asked: Asked) -> None:
        """Note what became of an entry that was asked back."""
        if entry.asked is Asked.WAITING:
            self.waiting -= 1
        entry.asked = asked

    def overdue(self, now: float) -> Iterator[Entry]:
        """Entries whose revoke was not answered in time."""
        asked = self.asked
        while asked and (asked[0][0] <= now or asked[0][1].asked is not Asked.WAITING):
            entry = asked.popleft()[1]
            if entry.asked is Asked.WAITING:
                self.settle(entry, Asked.OVERDUE)
                yield entry

    def next_deadline(self, idle: int) -> float | None:
        """When to look again, with so many workers idle; None where nothing is awaited."""
        moments = []
        if self.asked:
            moments.append(self.asked[0][0])
        if self.heap and self.waiting < idle:
            moments.append(self.heap[0][0])
        return min(moments, default=None)

    def _is_asked(self, worker: Worker) -> bool:
        return any(entry.asked is not Asked.NO for entry in worker.held)

    def _due(self, worker: Worker) -> float:
        policy, mean = self._policy, worker.held[0].call.pace.mean or 0.0
        return worker.since + max(policy.floor, policy.factor * mean, policy.each * self._workers)

    def _push(self, due: float, worker: Worker) -> None:
        self._serial += 1
        heapq.heappush(self.heap, (due, self._serial, worker))
