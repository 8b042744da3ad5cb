"""Asking back what waits behind a slow unit, and what to do when nobody answers."""

from __future__ import annotations

from fiber._tasks.pending.calls import Call
from fiber._tasks.pending.commands import Instruction, Revoke
from fiber._tasks.pending.duplicates import Contest
from fiber._tasks.pending.events import RevokeAnswered
from fiber._tasks.pending.ledger import Ledger
from fiber._tasks.pending.workers import Asked, Worker
from fiber.exceptions import WireError


class Revoker:
    """Moves work from workers that are stuck to workers that are idle."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def ask_back(self, now: float, out: list[Instruction]) -> None:
        """Ask for the work that sits behind slow units, for workers that are idle."""
        for worker in self._ledger.watch.victims(now, len(self._ledger.lobby.idle)):
            for entry in worker.held:
                if not entry.call.is_over and worker.unbegun(entry) < entry.stop:
                    self._ledger.watch.ask(entry, now)
                    out.append(Revoke(worker.id, entry.id))
            self._ledger.lobby.place(worker)

    def take_back(self, worker: Worker, now: float, out: list[Instruction]) -> None:
        """Ask a worker that has to go for all that it has not begun."""
        for entry in worker.held:
            if entry.asked is Asked.NO and worker.unbegun(entry) < entry.stop:
                self._ledger.watch.ask(entry, now)
                out.append(Revoke(worker.id, entry.id))

    def answered(self, event: RevokeAnswered, out: list[Instruction]) -> None:
        """A worker says what it keeps; the rest is queued as if it had never been given.

        Raises:
            WireError: the answer contradicts what the worker was given.
        """
        entry = self._ledger.entries.get(event.entry)
        if entry is None or entry.worker.id != event.worker:
            return
        kept, stop, call, worker = event.kept_stop, entry.stop, entry.call, entry.worker
        if (
            entry.asked not in {Asked.WAITING, Asked.OVERDUE}
            or not entry.done <= kept <= stop
            or (kept != stop and kept % call.chunk)
        ):
            msg = (
                f"worker {worker.id} keeps entry {entry.id} up to item {kept}, where {entry.done} "
                f"to {stop} in units of {call.chunk} are open and the revoke is "
                f"{entry.asked.value}; its connection must be closed"
            )
            raise WireError(msg)
        self._ledger.watch.settle(entry, Asked.ANSWERED)
        if kept < stop:
            entry.stop = kept
            if worker.quota is not None:
                worker.quota += call.units(kept, stop)
            if not call.is_over:
                self._hand_back(call, kept, stop)
        if entry.done == kept:
            self._ledger.release(entry)
        self._ledger.place(worker, out)

    def _hand_back(self, call: Call, start: int, stop: int) -> None:
        """Queue what a worker gave back and nobody else has."""
        contest = call.contest
        if contest is None:
            call.put_back(start, stop)
        else:
            for part in reversed(contest.orphans(start, stop, taint=False)):
                call.withdraw(*part)
                suspects, others = contest.split(*part)
                for suspect in suspects:
                    call.suspect(*suspect)
                for other in reversed(others):
                    call.put_back(*other)
        self._ledger.lines.join(call)

    def let_go(self, now: float) -> None:
        """Queue what a worker did not give back in time as well: the first result counts."""
        for entry in self._ledger.watch.overdue(now):
            call, start = entry.call, entry.worker.unbegun(entry)
            if call.is_over or not call.retry or start >= entry.stop:
                continue
            if call.contest is None:
                call.contest = Contest()
            for part in reversed(call.contest.open(entry, start, entry.stop)):
                call.withdraw(*part)
                call.put_back(*part)
            self._ledger.lines.join(call)
