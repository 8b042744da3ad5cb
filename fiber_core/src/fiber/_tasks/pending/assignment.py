"""Which worker gets what next."""

from __future__ import annotations

import itertools

from fiber._tasks.pending.batching import batch_units
from fiber._tasks.pending.calls import Call
from fiber._tasks.pending.commands import Dispatch, Instruction
from fiber._tasks.pending.ledger import Ledger
from fiber._tasks.pending.policy import BatchPolicy
from fiber._tasks.pending.workers import Entry, Worker


class Giver:
    """Turns waiting units and asking workers into entries."""

    __slots__ = ("_ledger", "_numbers", "_policy")

    def __init__(self, ledger: Ledger, policy: BatchPolicy) -> None:
        self._ledger = ledger
        self._policy = policy
        self._numbers = itertools.count(1)

    def give(self, now: float, out: list[Instruction]) -> None:
        """Dispatch while somebody can take what is next.

        What is next waits for a worker that may take it, and nothing overtakes it: in a busy pool
        no worker would ever hold nothing if others were given a second entry meanwhile.
        """
        lines, lobby = self._ledger.lines, self._ledger.lobby
        while lobby.idle or lobby.fast:
            call = lines.suspect() if lines.suspects else None
            if call is not None:
                worker = lobby.find_idle()
                if worker is None:
                    return
                lines.turn_suspect()
                start, stop = call.take_suspect()
                self._dispatch(worker, call, start, stop, True, now, out)
                continue
            call = lines.ordinary()
            if call is None:
                return
            worker = lobby.find_idle()
            if worker is None and self._may_queue(call):
                worker = lobby.find_second()
            if worker is None:
                return
            lines.turn_ordinary()
            units = 1
            if call.retry:
                units = batch_units(
                    self._policy,
                    call.pace.mean,
                    call.queued,
                    self._ledger.takers,
                    worker.quota,
                    call.bytes_per_item * call.chunk,
                )
            start, stop = call.take(units)
            self._dispatch(worker, call, start, stop, False, now, out)

    def _may_queue(self, call: Call) -> bool:
        """Whether work of this call may wait behind other work on a worker."""
        if not (call.retry and call.pace.is_fast):
            return False
        mean = call.pace.mean
        if mean is not None and mean < self._policy.spread_from:
            return True
        return call.queued > self._ledger.takers

    def _dispatch(
        self,
        worker: Worker,
        call: Call,
        start: int,
        stop: int,
        suspect: bool,
        now: float,
        out: list[Instruction],
    ) -> None:
        ledger = self._ledger
        entry = Entry(next(self._numbers), call, worker, start, stop, is_suspect=suspect)
        ledger.entries[entry.id] = entry
        if not worker.held:
            worker.since = now
        worker.held.append(entry)
        worker.credits -= 1
        if worker.quota is not None:
            worker.quota -= call.units(start, stop)
        if call.contest is not None:
            call.contest.given(entry)
        ledger.place(worker, out)
        if not worker.is_watched and (stop - start > call.chunk or len(worker.held) > 1):
            ledger.watch.note(worker, len(ledger.workers))
        out.append(Dispatch(worker.id, entry.id, call.id, start, stop, call.chunk))
