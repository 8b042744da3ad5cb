"""The pending table: an event in, instructions out.

``docs/design/pending-table.md`` tells how it decides and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fiber._tasks.pending import events, views
from fiber._tasks.pending.assignment import Giver
from fiber._tasks.pending.calls import Call
from fiber._tasks.pending.commands import Instruction
from fiber._tasks.pending.ledger import Ledger
from fiber._tasks.pending.policy import BatchPolicy, RetryPolicy, RevokePolicy
from fiber._tasks.pending.revoking import Revoker
from fiber._tasks.pending.stragglers import Watch
from fiber._tasks.pending.workers import Worker
from fiber.exceptions import WireError


class PendingTable:
    """Decides which worker gets what, and what becomes of it when a worker dies or stalls.

    It has no clock, no thread and no socket, and is not thread-safe: one owner feeds it.

    Args:
        policy: how often a unit may kill its worker.
        batching: how much a worker is given at a time.
        revoking: when work is asked back.
    """

    def __init__(
        self,
        *,
        policy: RetryPolicy | None = None,
        batching: BatchPolicy | None = None,
        revoking: RevokePolicy | None = None,
    ) -> None:
        self._policy = policy or RetryPolicy()
        batching = batching or BatchPolicy()
        watch = Watch(revoking or RevokePolicy())
        self._ledger = Ledger(watch, batching.second_below)
        # Short ways for what every event looks at.
        self._watch, self._lobby, self._total = watch, self._ledger.lobby, self._ledger.total
        self._giver = Giver(self._ledger, batching)
        self._revoker = Revoker(self._ledger)
        self._handlers: dict[type, Callable[[Any, float, list[Instruction]], None]] = {
            events.CallAdded: self._call_added,
            events.ItemsAdded: self._items_added,
            events.CallDropped: self._call_dropped,
            events.ItemsWithdrawn: self._items_withdrawn,
            events.SizeObserved: self._size_observed,
            events.WorkerJoined: self._worker_joined,
            events.WorkerAsked: self._worker_asked,
            events.WorkerDraining: self._worker_draining,
            events.WorkerLost: self._worker_lost,
            events.UnitsDone: self._units_done,
            events.RevokeAnswered: self._revoke_answered,
            events.Tick: self._tick,
        }

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Take an event in.

        Events about workers, entries and calls that are not, or no longer, known change nothing.

        Args:
            event: what happened.
            now: the moment, by any clock that never goes back.

        Returns:
            What to do, in this order.

        Raises:
            WireError: a worker's report contradicts what it was given; nothing was changed.
                Close that worker.
            ValueError: a call or worker is added twice, or a closed call grows.
        """
        out: list[Instruction] = []
        self._handlers[type(event)](event, now, out)
        if self._watch.asked:
            self._revoker.let_go(now)
        lobby = self._lobby
        if (lobby.idle or lobby.fast) and self._total.units:
            self._giver.give(now, out)
        if lobby.idle and self._watch.heap:
            self._revoker.ask_back(now, out)
        return out

    def next_deadline(self) -> float | None:
        """When a :class:`~fiber._tasks.pending.events.Tick` must come; None where none need."""
        return self._ledger.watch.next_deadline(len(self._ledger.lobby.idle))

    # What the dispatcher may look at.

    @property
    def queued(self) -> int:
        """Units that wait for a worker."""
        return self._ledger.total.units

    @property
    def idle(self) -> int:
        """Workers that asked for work and hold none."""
        return len(self._ledger.lobby.idle)

    @property
    def is_idle(self) -> bool:
        """True where every call is over."""
        return not self._ledger.calls

    @property
    def longest_idle(self) -> tuple[str, float] | None:
        """The worker that has been idle the longest, with when it last did something."""
        for worker in self._ledger.lobby.idle:
            return worker.id, worker.since
        return None

    def held(self, worker: str) -> tuple[views.HeldView, ...]:
        """The entries of a worker in the order in which it runs them; none where it is unknown."""
        found = self._ledger.workers.get(worker)
        return () if found is None else tuple(map(views.of_entry, found.held))

    def call(self, call: int) -> views.CallView | None:
        """A call as it stands, or None where it is over or was never added."""
        found = self._ledger.calls.get(call)
        return None if found is None else views.of_call(found)

    def snapshot(self) -> views.Snapshot:
        """Everything, at the cost of a walk over all of it."""
        return views.Snapshot(
            calls=tuple(map(views.of_call, self._ledger.calls.values())),
            workers=tuple(map(views.of_worker, self._ledger.workers.values())),
        )

    # Calls.

    def _call_added(self, event: events.CallAdded, now: float, out: list[Instruction]) -> None:
        if event.call in self._ledger.calls:
            msg = f"call {event.call} was added twice"
            raise ValueError(msg)
        call = Call(
            event.call,
            chunk=event.chunksize or 1,
            retry=event.retry,
            pace=self._ledger.pace(event.kind),
            total=self._ledger.total,
        )
        self._ledger.calls[call.id] = call
        self._grow(call, event.count, event.closed, out)

    def _items_added(self, event: events.ItemsAdded, now: float, out: list[Instruction]) -> None:
        call = self._ledger.calls.get(event.call)
        if call is None:
            return
        if call.closed:
            msg = f"call {event.call} is closed and cannot grow"
            raise ValueError(msg)
        self._grow(call, event.count, event.closed, out)

    def _grow(self, call: Call, count: int, closed: bool, out: list[Instruction]) -> None:
        call.grow(count, closed=closed)
        self._ledger.lines.join(call)
        self._ledger.end_if_complete(call, out)

    def _call_dropped(self, event: events.CallDropped, now: float, out: list[Instruction]) -> None:
        call = self._ledger.calls.pop(event.call, None)
        if call is not None:
            call.forget()

    def _items_withdrawn(
        self, event: events.ItemsWithdrawn, now: float, out: list[Instruction]
    ) -> None:
        call = self._ledger.calls.get(event.call)
        if call is None:
            return
        if event.start % call.chunk or (event.stop % call.chunk and event.stop != call.count):
            msg = f"items {event.start} to {event.stop} are no whole units of {call.chunk}"
            raise ValueError(msg)
        self._ledger.withdraw(call, event.start, event.stop, out)

    def _size_observed(
        self, event: events.SizeObserved, now: float, out: list[Instruction]
    ) -> None:
        call = self._ledger.calls.get(event.call)
        if call is not None:
            call.bytes_per_item = event.bytes_per_item

    # Workers.

    def _worker_joined(
        self, event: events.WorkerJoined, now: float, out: list[Instruction]
    ) -> None:
        if event.worker in self._ledger.workers:
            msg = f"worker {event.worker} joined twice"
            raise ValueError(msg)
        worker = Worker(event.worker, event.quota, now)
        self._ledger.workers[worker.id] = worker
        self._ledger.place(worker, out)

    def _worker_asked(self, event: events.WorkerAsked, now: float, out: list[Instruction]) -> None:
        worker = self._ledger.workers.get(event.worker)
        if worker is None or worker.is_closed or worker.is_retired:
            return
        worker.credits += event.credits
        self._ledger.lobby.place(worker)

    def _worker_draining(
        self, event: events.WorkerDraining, now: float, out: list[Instruction]
    ) -> None:
        worker = self._ledger.workers.get(event.worker)
        if worker is not None:
            worker.is_closed = True
            if event.hand_back:
                self._revoker.take_back(worker, now, out)
            self._ledger.place(worker, out)

    def _worker_lost(self, event: events.WorkerLost, now: float, out: list[Instruction]) -> None:
        worker = self._ledger.workers.pop(event.worker, None)
        if worker is None:
            return
        worker.is_gone = True
        held = list(worker.held)
        for entry in held:
            self._ledger.release(entry)
        self._ledger.place(worker, out)
        attempt = event.attempt
        blames = event.counts and attempt is not None and attempt.reason.counts_as_attempt
        # Only a unit that was alone is proven to have been there when the worker died.
        alone = len(held) == 1 and held[0].is_single
        for entry in held:
            call, start, stop = entry.call, entry.done, entry.stop
            if call.is_over:
                continue
            if not call.retry:
                self._ledger.abandon(call, start, stop, () if attempt is None else (attempt,), out)
            elif blames and alone and attempt is not None:
                attempts = (*call.history.get(start, ()), attempt)
                if len(attempts) >= self._policy.max_attempts:
                    self._ledger.abandon(call, start, stop, attempts, out)
                else:
                    call.history[start] = attempts
                    self._ledger.suspect(call, start, stop, out)
            else:
                self._ledger.suspect(call, start, stop, out)

    # Results.

    def _units_done(self, event: events.UnitsDone, now: float, out: list[Instruction]) -> None:
        entry = self._ledger.entries.get(event.entry)
        if entry is None or entry.worker.id != event.worker:
            return
        start, stop, call, worker = event.start, event.stop, entry.call, entry.worker
        if (
            start != entry.done
            or not start < stop <= entry.stop
            or (stop != entry.stop and stop % call.chunk)
            or not 0.0 <= event.seconds < math.inf
        ):
            msg = (
                f"worker {worker.id} reports items {start} to {stop} of entry {entry.id} in "
                f"{event.seconds} s, where {entry.done} to {entry.stop} in units of {call.chunk} "
                f"are open; its connection must be closed"
            )
            raise WireError(msg)
        if call.pace.add(call.units(start, stop), event.seconds):
            self._lobby.pace_changed(call.pace)
        worker.since = now
        entry.done = stop
        if not call.is_over:
            self._ledger.accept(call, start, stop, out)
        if stop == entry.stop:
            self._ledger.release(entry)
            self._ledger.place(worker, out)

    def _revoke_answered(
        self, event: events.RevokeAnswered, now: float, out: list[Instruction]
    ) -> None:
        self._revoker.answered(event, out)

    def _tick(self, event: events.Tick, now: float, out: list[Instruction]) -> None:
        """Nothing of its own: whatever is due is looked at after any event."""
