"""Who sits on work behind a slow unit, and which revokes were not answered in time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from fiber._tasks.pending.policy import RevokePolicy
from fiber._tasks.pending.workers import Asked, Entry, Worker


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
