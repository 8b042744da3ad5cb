"""The books of the pending table: calls, workers, entries, and the moves that keep them in step.

Whose turn it is: calls with work that waits, one turn a dispatch.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.calls import Call, Tally
from fiber._tasks.pending.events import (
    Abandon,
    Accept,
    CallDone,
    Instruction,
    Requeue,
    Retire,
    Withdraw,
)
from fiber._tasks.pending.ranges import Range
from fiber._tasks.pending.stragglers import Watch
from fiber._tasks.pending.workers import Asked, Entry, Lobby, Worker
from fiber.model.job import Attempt


class Lines:
    """Two lines of calls: those with units that must travel alone, and those with ordinary work.

    A call whose work was taken away otherwise stays in line and is skipped when its turn comes.
    """

    __slots__ = ("_ordinary", "suspects")

    def __init__(self) -> None:
        self._ordinary: deque[Call] = deque()
        #: calls with suspects, and some that had
        self.suspects: deque[Call] = deque()

    def join(self, call: Call) -> None:
        """Put a call into the lines where it has work and does not stand yet."""
        if call.ready and not call.in_ring:
            call.in_ring = True
            self._ordinary.append(call)
        if call.suspects and not call.in_suspect_ring:
            call.in_suspect_ring = True
            self.suspects.append(call)

    def suspect(self) -> Call | None:
        """The call whose suspect is next."""
        line = self.suspects
        while line:
            call = line[0]
            if call.suspects:
                return call
            call.in_suspect_ring = False
            line.popleft()
        return None

    def ordinary(self) -> Call | None:
        """The call whose ordinary work is next."""
        line = self._ordinary
        while line:
            call = line[0]
            if call.ready:
                return call
            call.in_ring = False
            line.popleft()
        return None

    def turn_suspect(self) -> None:
        """The first call had its turn for a suspect."""
        self.suspects.rotate(-1)

    def turn_ordinary(self) -> None:
        """The first call had its turn for ordinary work."""
        self._ordinary.rotate(-1)


#: kinds of calls whose durations are remembered
KINDS = 256


class Ledger:
    """Who has what; every move leaves calls, workers and entries consistent."""

    __slots__ = (
        "_limit",
        "_paces",
        "calls",
        "entries",
        "lines",
        "lobby",
        "takers",
        "total",
        "watch",
        "workers",
    )

    def __init__(self, watch: Watch, limit: float) -> None:
        self.calls: dict[int, Call] = {}
        self.workers: dict[str, Worker] = {}
        self.entries: dict[int, Entry] = {}
        self.lines = Lines()
        self.lobby = Lobby()
        self.watch = watch
        #: units that wait, of all calls
        self.total = Tally()
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

    def end_if_complete(self, call: Call, out: list[Instruction]) -> None:
        """Say so where nothing of a call is left to come."""
        if call.closed and call.finished == call.count:
            del self.calls[call.id]
            call.forget()
            out.append(CallDone(call.id))

    def place(self, worker: Worker, out: list[Instruction]) -> None:
        """Let a change of what a worker holds, or may be given, take effect."""
        takes = not (worker.quota == 0 or worker.is_closed or worker.is_gone)
        if takes is not worker.is_taker:
            worker.is_taker = takes
            self.takers += 1 if takes else -1
        if not (takes or worker.held or worker.is_gone or worker.is_retired):
            worker.is_retired = True
            out.append(Retire(worker.id))
        self.lobby.place(worker)

    def suspect(self, call: Call, start: int, stop: int, out: list[Instruction]) -> None:
        """Let what a lost worker may have begun run again, each unit alone."""
        parts = [(start, stop)]
        if call.contest is not None:
            parts = call.contest.orphans(start, stop, taint=True)
        for part in parts:
            if call.contest is not None:
                call.withdraw(*part)
            call.suspect(*part)
            out.append(Requeue(call.id, *part))
        self.lines.join(call)

    def accept(self, call: Call, start: int, stop: int, out: list[Instruction]) -> None:
        """Take results in; what is not the first for its item is left out."""
        if call.contest is None:
            out.append(Accept(call.id, start, stop))
            call.finished += stop - start
            if call.history:
                call.history.pop(start, None)
        else:
            out += [Accept(call.id, *part) for part in self._settle(call, start, stop)]
        if call.finished == call.count:
            self.end_if_complete(call, out)

    def abandon(
        self,
        call: Call,
        start: int,
        stop: int,
        attempts: tuple[Attempt, ...],
        out: list[Instruction],
    ) -> None:
        """Give items up, save those that have a result."""
        for part in self._settle(call, start, stop):
            call.abandoned += part[1] - part[0]
            out.append(Abandon(call.id, *part, attempts))
        self.end_if_complete(call, out)

    def withdraw(self, call: Call, start: int, stop: int, out: list[Instruction]) -> None:
        """Take items out that nobody was given, or that somebody else has as well."""
        for part in call.waiting(start, stop):
            call.withdraw(*part)
            out += [Withdraw(call.id, *fresh) for fresh in self._settle(call, *part)]
        self.end_if_complete(call, out)

    def _settle(self, call: Call, start: int, stop: int) -> list[Range]:
        """Count items as finished; returns those that were not."""
        if call.history:
            call.history.pop(start, None)
        if call.contest is None:
            call.finished += stop - start
            return [(start, stop)]
        parts = call.contest.settle(start, stop)
        for part in parts:
            call.finished += part[1] - part[0]
            call.withdraw(*part)
        return parts

    def release(self, entry: Entry) -> None:
        """Take an entry off its worker."""
        del self.entries[entry.id]
        entry.worker.held.remove(entry)
        if entry.asked is not Asked.NO:
            self.watch.settle(entry, Asked.ANSWERED)
        if entry.call.contest is not None:
            entry.call.contest.gone(entry)
