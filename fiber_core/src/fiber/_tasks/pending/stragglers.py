"""Workers that hold work behind a slow unit, revokes without an answer, and duplicated items.

Items are duplicated only where a revoke was not answered in time and another worker was given the
same items as well; the first result counts. So a call has a :class:`Duplicates` only after its
first such revoke, and calls without one pay nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator

from fiber._tasks.pending.policy import RevokePolicy
from fiber._tasks.pending.ranges import Range, RangeSet
from fiber._tasks.pending.worker_state import Entry, RevokeState, WorkerState


class Duplicates:
    """Items of one call that several workers hold, or held: the first result is accepted."""

    __slots__ = ("_duplicated", "_holders", "_longest", "_settled", "_tainted")

    def __init__(self) -> None:
        #: items that were ever queued a second time
        self._duplicated = RangeSet()
        #: those of them that are accepted or abandoned
        self._settled = RangeSet()
        #: those of them that a lost worker may have begun while another one held them too
        self._tainted = RangeSet()
        #: live entries with duplicated items, by their first item: with many workers there are many
        self._holders: list[tuple[int, int, Entry]] = []
        #: items of the longest of them so far
        self._longest = 0

    def add(self, entry: Entry, start: int, stop: int) -> list[Range]:
        """Let other workers be given ``[start, stop)`` of an entry as well.

        Returns:
            The parts to queue: those that have no result yet.
        """
        self._duplicated.add(start, stop)
        self._hold(entry)
        return self._settled.outside(start, stop)

    def dispatched(self, entry: Entry) -> None:
        """Note an entry that was dispatched."""
        if self._duplicated.within(entry.start, entry.stop):
            self._hold(entry)

    def released(self, entry: Entry) -> None:
        """Note an entry that is finished or lost."""
        at = self._find(entry)
        if self._has(at, entry):
            del self._holders[at]

    def settle(self, start: int, stop: int) -> list[Range]:
        """Mark ``[start, stop)`` as accepted or abandoned; returns the parts that were neither."""
        fresh = self._settled.outside(start, stop)
        for part in self._duplicated.within(start, stop):
            self._settled.add(*part)
        return fresh

    def orphans(self, start: int, stop: int, *, taint: bool) -> list[Range]:
        """The parts of ``[start, stop)`` that have no result and no other holder.

        Args:
            start: first item that a worker no longer has.
            stop: one past the last.
            taint: True where that worker may have begun them, so that the items which others still
                hold must travel alone if they are ever queued again.
        """
        held = RangeSet((entry.done, entry.stop) for entry in self._overlapping(start, stop))
        alone = []
        for part in self._settled.outside(start, stop):
            alone += held.outside(*part)
            if taint:
                for kept in held.within(*part):
                    self._tainted.add(*kept)
        return alone

    def split(self, start: int, stop: int) -> tuple[list[Range], list[Range]]:
        """The parts of ``[start, stop)`` that must travel alone, and the other parts."""
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

    def _overlapping(self, start: int, stop: int) -> Iterator[Entry]:
        """Live entries that may have items of ``[start, stop)``."""
        holders = self._holders
        at = bisect_left(holders, (start - self._longest,))
        while at < len(holders) and holders[at][0] < stop:
            yield holders[at][2]
            at += 1


class StragglerWatch:
    """Deadlines: when to revoke work behind a slow unit, and when a revoke is overdue.

    A worker that gets work to keep behind its current unit is noted once, in a heap by the moment
    at which that unit will have run too long. Reports do not touch the heap: a worker that made
    progress is noticed, and noted anew, when its moment has come and another worker is idle.
    """

    __slots__ = ("_policy", "_serial", "_workers", "heap", "revokes", "unanswered")

    def __init__(self, policy: RevokePolicy) -> None:
        self._policy = policy
        self.heap: list[tuple[float, int, WorkerState]] = []
        self._serial = 0
        self._workers = 0
        #: revoked entries by the moment at which an answer is overdue, with True where that was put
        #: off; answered ones are skipped
        self.revokes: deque[tuple[float, Entry, bool]] = deque()
        #: how many revoked entries have no answer and are not overdue
        self.unanswered = 0

    def note(self, worker: WorkerState, workers: int) -> None:
        """Watch a worker that holds work behind its current unit; ``workers`` is how many there are."""
        if worker.is_watched:
            return
        self._workers = workers
        worker.is_watched = True
        self._push(self._due(worker), worker)
        if len(self.heap) > 2 * workers + 64:
            # Lost workers leave the heap when their moment comes; while no worker is idle it never does.
            self.heap = [item for item in self.heap if not item[2].is_gone]
            heapq.heapify(self.heap)

    def stuck_workers(self, now: float, idle: int) -> Iterator[WorkerState]:
        """Workers whose unit has run too long, as long as more workers are idle than answers are due."""
        heap = self.heap
        while heap and heap[0][0] <= now and self.unanswered < idle:
            worker = heapq.heappop(heap)[2]
            worker.is_watched = False
            if worker.is_gone or not worker.has_unbegun or self._is_revoked(worker):
                continue
            due = self._due(worker)
            if due > now:
                worker.is_watched = True
                self._push(due, worker)
            else:
                yield worker

    def revoked(self, entry: Entry, now: float) -> None:
        """Note that an entry was revoked."""
        entry.revoke = RevokeState.WAITING
        self.unanswered += 1
        self.revokes.append((now + self._answer_timeout, entry, False))

    def settle(self, entry: Entry, state: RevokeState) -> None:
        """Note the new state of a revoked entry."""
        if entry.revoke is RevokeState.WAITING:
            self.unanswered -= 1
        entry.revoke = state

    def overdue(self, now: float) -> Iterator[Entry]:
        """Entries whose revoke was not answered in time.

        A process that looks much too late has stood still itself, and so may its workers have: the
        answer may be on the way, or here and not read. So it waits once more.
        """
        revokes, late = self.revokes, self._answer_timeout / 2
        while revokes and (revokes[0][0] <= now or revokes[0][1].revoke is not RevokeState.WAITING):
            due, entry, is_put_off = revokes.popleft()
            if entry.revoke is not RevokeState.WAITING:
                continue
            if now - due > late and not is_put_off:
                revokes.append((now + self._answer_timeout, entry, True))
            else:
                self.settle(entry, RevokeState.OVERDUE)
                yield entry

    def next_deadline(self, idle: int) -> float | None:
        """The next deadline while ``idle`` workers are idle; None where there is none."""
        first = self.revokes[0][0] if self.revokes else None
        if self.heap and self.unanswered < idle:
            moment = self.heap[0][0]
            return moment if first is None else min(first, moment)
        return first

    @property
    def _answer_timeout(self) -> float:
        return self._policy.answer_timeout + self._policy.per_worker * self._workers

    def _is_revoked(self, worker: WorkerState) -> bool:
        return any(entry.revoke is not RevokeState.NO for entry in worker.held)

    def _due(self, worker: WorkerState) -> float:
        policy, mean = self._policy, worker.held[0].call.pace.mean or 0.0
        return worker.since + max(
            policy.floor, policy.factor * mean, policy.per_worker * self._workers
        )

    def _push(self, due: float, worker: WorkerState) -> None:
        self._serial += 1
        heapq.heappush(self.heap, (due, self._serial, worker))
