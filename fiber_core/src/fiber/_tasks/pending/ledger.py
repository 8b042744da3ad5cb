"""State of the pending table (calls, workers, entries) and the changes that keep it consistent.

Apart from the table, so that every change of the three goes through the methods of
:class:`Ledger`, and what an event means stands in the table alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.call_state import CallState, SharedCount
from fiber._tasks.pending.events import (
    Abandon,
    Accept,
    CallDone,
    Command,
    Requeue,
    Retire,
    Withdraw,
)
from fiber._tasks.pending.ranges import Range
from fiber._tasks.pending.stragglers import StragglerWatch
from fiber._tasks.pending.worker_state import AvailableWorkers, Entry, RevokeState, WorkerState
from fiber.model.job import Attempt


class FairQueue:
    """Round robin over the calls that have waiting units: one turn, one dispatch.

    There are two queues: calls with suspects, whose units must travel alone, and calls with
    ordinary work. A call that has lost its work stays queued and is skipped when its turn comes.
    """

    __slots__ = ("_ordinary", "suspects")

    def __init__(self) -> None:
        self._ordinary: deque[CallState] = deque()
        #: calls with suspects, and some that had
        self.suspects: deque[CallState] = deque()

    def add(self, call: CallState) -> None:
        """Queue a call wherever it has work and is not queued yet."""
        if call.ready and not call.is_queued:
            call.is_queued = True
            self._ordinary.append(call)
        if call.suspects and not call.is_suspect_queued:
            call.is_suspect_queued = True
            self.suspects.append(call)

    def next_suspect(self) -> CallState | None:
        """The call whose suspect is next, or None."""
        queue = self.suspects
        while queue:
            call = queue[0]
            if call.suspects:
                return call
            call.is_suspect_queued = False
            queue.popleft()
        return None

    def next_ordinary(self) -> CallState | None:
        """The call whose ordinary work is next, or None."""
        queue = self._ordinary
        while queue:
            call = queue[0]
            if call.ready:
                return call
            call.is_queued = False
            queue.popleft()
        return None

    def rotate_suspects(self) -> None:
        """Move the first call with suspects to the end of its queue."""
        self.suspects.rotate(-1)

    def rotate_ordinary(self) -> None:
        """Move the first call with ordinary work to the end of its queue."""
        self._ordinary.rotate(-1)


#: kinds of calls whose durations are remembered
KINDS = 256


class Ledger:
    """Calls, workers and entries; every method leaves them consistent."""

    __slots__ = (
        "_limit",
        "_paces",
        "available",
        "calls",
        "entries",
        "queue",
        "stragglers",
        "takers",
        "total",
        "workers",
    )

    def __init__(self, stragglers: StragglerWatch, limit: float) -> None:
        self.calls: dict[int, CallState] = {}
        self.workers: dict[str, WorkerState] = {}
        self.entries: dict[int, Entry] = {}
        self.queue = FairQueue()
        self.available = AvailableWorkers()
        self.stragglers = stragglers
        #: units that wait, of all calls
        self.total = SharedCount()
        #: workers that may be given more, now or later
        self.takers = 0
        #: seconds of a unit from which on a pace is slow
        self._limit = limit
        #: durations by kind of call, the least recently added first
        self._paces: OrderedDict[str, Pace] = OrderedDict()

    def pace(self, kind: str | None) -> Pace:
        """The durations that calls of a kind share; new ones for no kind."""
        if kind is None:
            return Pace(self._limit)
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = Pace(self._limit)
            if len(self._paces) > KINDS:
                self._paces.popitem(last=False)
        else:
            self._paces.move_to_end(kind)
        return pace

    def end_if_complete(self, call: CallState, out: list[Command]) -> None:
        """Emit ``CallDone`` and remove a call whose items are all finished."""
        if call.closed and call.finished == call.count:
            del self.calls[call.id]
            call.forget()
            out.append(CallDone(call.id))

    def update(self, worker: WorkerState, out: list[Command]) -> None:
        """Apply a change of what a worker holds or may be given: queues, count, ``Retire``."""
        takes = not (worker.units_left == 0 or worker.is_closed or worker.is_gone)
        if takes is not worker.is_taker:
            worker.is_taker = takes
            self.takers += 1 if takes else -1
        if not (takes or worker.held or worker.is_gone or worker.is_retired):
            worker.is_retired = True
            out.append(Retire(worker.id))
        self.available.update(worker)

    def suspect(self, call: CallState, start: int, stop: int, out: list[Command]) -> None:
        """Queue items that a lost worker may have begun, each unit to run alone."""
        parts = [(start, stop)]
        if call.duplicates is not None:
            parts = call.duplicates.orphans(start, stop, taint=True)
        for part in parts:
            if call.duplicates is not None:
                call.withdraw(*part)
            call.suspect(*part)
            out.append(Requeue(call.id, *part))
        self.queue.add(call)

    def accept(self, call: CallState, start: int, stop: int, out: list[Command]) -> None:
        """Accept results, save those of items that already have one."""
        if call.duplicates is None:
            out.append(Accept(call.id, start, stop))
            call.finished += stop - start
            if call.history:
                call.history.pop(start, None)
        else:
            out += [Accept(call.id, *part) for part in self._settle(call, start, stop)]
        if call.closed and call.finished == call.count:
            self.end_if_complete(call, out)

    def abandon(
        self,
        call: CallState,
        start: int,
        stop: int,
        attempts: tuple[Attempt, ...],
        out: list[Command],
    ) -> None:
        """Give items up, save those that have a result."""
        for part in self._settle(call, start, stop):
            call.abandoned += part[1] - part[0]
            out.append(Abandon(call.id, *part, attempts))
        self.end_if_complete(call, out)

    def withdraw(self, call: CallState, start: int, stop: int, out: list[Command]) -> None:
        """Withdraw the items of a range that wait; those on a worker are not touched."""
        for part in call.waiting(start, stop):
            call.withdraw(*part)
            out += [Withdraw(call.id, *fresh) for fresh in self._settle(call, *part)]
        self.end_if_complete(call, out)

    def _settle(self, call: CallState, start: int, stop: int) -> list[Range]:
        """Count items as finished; returns those that were not."""
        if call.history:
            call.history.pop(start, None)
        if call.duplicates is None:
            call.finished += stop - start
            return [(start, stop)]
        parts = call.duplicates.settle(start, stop)
        for part in parts:
            call.finished += part[1] - part[0]
            call.withdraw(*part)
        return parts

    def release(self, entry: Entry) -> None:
        """Take an entry off its worker."""
        del self.entries[entry.id]
        entry.worker.held.remove(entry)
        if entry.revoke is not RevokeState.NO:
            self.stragglers.settle(entry, RevokeState.ANSWERED)
        if entry.call.duplicates is not None:
            entry.call.duplicates.released(entry)
