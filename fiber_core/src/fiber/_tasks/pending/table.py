"""The pending table: decides which worker runs what, what runs again and what is given up.

An event in, commands out. :class:`PendingTable` says what each event means, :class:`Assigner` which
worker gets which units next, :class:`Revoker` which work is taken from stuck workers. Every change of
calls, workers and entries goes through the methods of :class:`Ledger`, which keep them consistent.
``docs/design/pending-table.md`` explains the rules.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from fiber._tasks.pending import events, state
from fiber._tasks.pending.events import (
    Abandon,
    Accept,
    BatchPolicy,
    CallDone,
    Command,
    Dispatch,
    Requeue,
    Retire,
    RetryPolicy,
    Revoke,
    RevokeAnswered,
    RevokePolicy,
    Withdraw,
)
from fiber._tasks.pending.state import (
    AvailableWorkers,
    CallState,
    Duplicates,
    Entry,
    Pace,
    Range,
    RevokeState,
    SharedCount,
    StragglerWatch,
    WorkerState,
    batch_units,
)
from fiber.exceptions import WireError
from fiber.model.job import Attempt


class FairQueue:
    """Round robin over the calls that have waiting units: one turn, one dispatch.

    There are two queues: calls with suspects, whose units must travel alone, and calls with
    ordinary work. A call that has lost its work stays queued and is skipped when its turn comes.
    Calls of tasks that were given one by one share a turn, in which these tasks are first in, first out.
    """

    __slots__ = ("_has_turn", "_one_by_one", "_ordinary", "_turn", "suspects", "turn")

    def __init__(self) -> None:
        #: calls, and None for the turn of tasks that were given one by one
        self._ordinary: deque[CallState | None] = deque()
        #: True while that is there
        self._has_turn = False
        #: these tasks: a number that grows, a call, and the item up to which its waiting ones are next
        self._one_by_one: deque[tuple[int, CallState, int]] = deque()
        #: the number of the last of them that was added
        self._turn = 0
        #: the number of the one that is next
        self.turn = 0
        #: calls with suspects, and some that had
        self.suspects: deque[CallState] = deque()

    def add(self, call: CallState, returned: tuple[int, int] | None = None) -> None:
        """Queue a call wherever it has work and is not queued yet.

        Args:
            call: the call.
            returned: of a range of items that a worker gave back its entry's turn, and its end; None where
                the call grew.
        """
        if call.one_by_one:
            if call.ready:
                self._add_in_order(call, returned)
        elif call.ready and not call.is_queued:
            call.is_queued = True
            self._ordinary.append(call)
        if call.suspects and not call.is_suspect_queued:
            call.is_suspect_queued = True
            self.suspects.append(call)

    def _add_in_order(self, call: CallState, returned: tuple[int, int] | None) -> None:
        tasks = self._one_by_one
        if not self._has_turn:
            self._has_turn = True
            self._ordinary.append(None)
        if returned is not None:
            turn, stop = returned
            at = 0
            # none but what was given back as well
            while at < len(tasks) and (tasks[at][0], tasks[at][2]) < returned:
                at += 1
            tasks.insert(at, (turn, call, stop))
            return
        if tasks and tasks[-1][0] == self._turn and tasks[-1][1] is call:
            tasks.pop()
        else:
            self._turn += 1
        tasks.append((self._turn, call, call.count))

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
            if call is None:
                call = self.next_one_by_one()
                if call is not None:
                    return call
                self._has_turn = False
            elif call.ready:
                return call
            else:
                call.is_queued = False
            queue.popleft()
        return None

    def next_one_by_one(self) -> CallState | None:
        """The call whose task is next of those that were given one by one, or None."""
        tasks = self._one_by_one
        while tasks:
            self.turn, call, stop = tasks[0]
            if call.ready and call.ready[0][0] < stop:
                return call
            tasks.popleft()
        return None

    def in_a_row(self) -> int:
        """Units of the call of :meth:`next_one_by_one` that come before those of others."""
        _, call, stop = self._one_by_one[0]
        return call.units(call.ready[0][0], stop)

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

    def accept(self, entry: Entry, stop: int, out: list[Command]) -> None:
        """Accept an entry's results up to ``stop``, save those of items that already have one."""
        call, start = entry.call, entry.done
        if call.duplicates is None:
            out.append(Accept(call.id, start, stop))
            # no call between the two: a signal's handler may raise behind each
            entry.done = stop
            call.finished += stop - start
            if call.history:
                call.history.pop(start, None)
        else:
            entry.done = stop
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
        self.entries.pop(entry.id, None)
        entry.worker.held.remove(entry)
        entry.worker.used -= not entry.more
        if entry.revoke is not RevokeState.NO:
            self.stragglers.settle(entry, RevokeState.ANSWERED)
        if entry.call.duplicates is not None:
            entry.call.duplicates.released(entry)


class Assigner:
    """Assigns waiting units to workers that have credit, as entries."""

    __slots__ = ("_ledger", "_numbers", "_policy")

    def __init__(self, ledger: Ledger, policy: BatchPolicy) -> None:
        self._ledger = ledger
        self._policy = policy
        self._numbers = itertools.count(1)

    def assign(self, now: float, out: list[Command]) -> None:
        """Dispatch as long as a worker can take the next units.

        The next units wait for a worker that may take them, and nothing overtakes them: in a busy
        pool no worker would ever hold nothing if it were given a second entry meanwhile.
        """
        queue, available, total = self._ledger.queue, self._ledger.available, self._ledger.total
        while total.units and (available.idle or available.fast):
            call = queue.next_suspect() if queue.suspects else None
            if call is not None:
                worker = available.find_idle()
                if worker is None:
                    return
                queue.rotate_suspects()
                start, stop = call.take_suspect()
                self._dispatch(worker, call, start, stop, True, now, out)
                continue
            call = queue.next_ordinary()
            if call is None:
                return
            worker = available.find_idle()
            if worker is None and self._may_queue(call):
                worker = available.find_second()
            if worker is None:
                return
            queue.rotate_ordinary()
            if call.one_by_one and total.units > 1:
                self._dispatch_in_order(worker, call, now, out)
                continue
            # no call more than needed: for each task that is waited for
            most = self._most(worker, call, call.queued) if call.queued > 1 else 1
            start, stop = call.take(most)
            self._dispatch(worker, call, start, stop, False, now, out).turn = queue.turn

    def _most(self, worker: WorkerState, call: CallState, queued: int) -> int:
        """Units that an entry of a call may have where so many wait."""
        if not call.retry:
            return 1
        return batch_units(
            self._policy,
            call.pace.mean,
            queued,
            self._ledger.takers,
            worker.units_left,
            call.bytes_per_item * call.chunk,
        )

    def _dispatch_in_order(
        self, worker: WorkerState, call: CallState, now: float, out: list[Command]
    ) -> None:
        """Dispatch the next of the tasks that were given one by one, for one credit.

        Those of one call that follow one another are an entry. The tasks of other calls behind them go with it,
        as entries of their own, as long as all together last no longer than one entry may.
        """
        queue, total = self._ledger.queue, self._ledger.total
        entry: Entry | None = None
        room = 1.0
        for _ in range(self._policy.max_entries):
            most = self._most(worker, call, total.units)
            units = min(int(room * most), queue.in_a_row())
            if units < 1:
                return
            if entry is not None:
                entry.more = True
                step = out[-1]
                assert isinstance(step, Dispatch)
                step.more = True
            start, stop = call.take(units)
            entry = self._dispatch(worker, call, start, stop, False, now, out, entry is not None)
            entry.turn = queue.turn
            room -= units / most
            following = queue.next_one_by_one()
            if following is None or not (
                worker.is_taker and call.pace.is_fast and following.pace.is_fast
            ):
                return
            call = following

    def _may_queue(self, call: CallState) -> bool:
        """Whether work of this call may wait behind other work on a worker."""
        if not (call.retry and call.pace.is_fast):
            return False
        mean = call.pace.mean
        if mean is not None and mean < self._policy.spread_from:
            return True
        return call.queued > self._policy.spread_below * self._ledger.takers

    def _dispatch(
        self,
        worker: WorkerState,
        call: CallState,
        start: int,
        stop: int,
        suspect: bool,
        now: float,
        out: list[Command],
        with_last: bool = False,
    ) -> Entry:
        ledger = self._ledger
        entry = Entry(next(self._numbers), call, worker, start, stop, is_suspect=suspect)
        ledger.entries[entry.id] = entry
        if not worker.held:
            worker.since = now
        worker.held.append(entry)
        if not with_last:
            worker.credits -= 1
            worker.used += 1
        if worker.units_left is not None:
            worker.units_left -= call.units(start, stop)
        if call.duplicates is not None:
            call.duplicates.dispatched(entry)
        ledger.update(worker, out)
        if not worker.is_watched and (stop - start > call.chunk or len(worker.held) > 1):
            ledger.stragglers.note(worker, len(ledger.workers))
        out.append(Dispatch(worker.id, entry.id, call.id, start, stop, call.chunk))
        return entry


class Revoker:
    """Takes work from stuck and from draining workers and queues it again."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def revoke_from_stuck(self, now: float, out: list[Command]) -> None:
        """Revoke the work behind slow units, for workers that are idle."""
        for worker in self._ledger.stragglers.stuck_workers(now, len(self._ledger.available.idle)):
            for entry in worker.held:
                if not entry.call.is_over and worker.unbegun(entry) < entry.stop:
                    self._ledger.stragglers.revoked(entry, now)
                    out.append(Revoke(worker.id, entry.id))
            self._ledger.available.update(worker)

    def revoke_unbegun(
        self, worker: WorkerState, now: float, out: list[Command], call: CallState | None = None
    ) -> None:
        """Revoke what a worker has not begun: everything, or what it holds of one call."""
        for entry in worker.held:
            if call is not None and entry.call is not call:
                continue
            if entry.revoke is RevokeState.NO and worker.unbegun(entry) < entry.stop:
                self._ledger.stragglers.revoked(entry, now)
                out.append(Revoke(worker.id, entry.id))

    def answered(self, event: RevokeAnswered, out: list[Command]) -> None:
        """Take the answer to a revoke; the rest is queued as if it had never been dispatched.

        Raises:
            WireError: the answer contradicts what the worker was given.
        """
        entry = self._ledger.entries.get(event.entry)
        if entry is None or entry.worker.id != event.worker:
            return
        kept, stop, call, worker = event.kept_stop, entry.stop, entry.call, entry.worker
        if (
            entry.revoke not in {RevokeState.WAITING, RevokeState.OVERDUE}
            or not entry.done <= kept <= stop
            or (kept != stop and kept % call.chunk)
        ):
            msg = (
                f"worker {worker.id} keeps entry {entry.id} up to item {kept}, where {entry.done} "
                f"to {stop} in units of {call.chunk} are open and the revoke is "
                f"{entry.revoke.value}; its connection must be closed"
            )
            raise WireError(msg)
        self._ledger.stragglers.settle(entry, RevokeState.ANSWERED)
        if kept < stop:
            entry.stop = kept
            if worker.units_left is not None:
                worker.units_left += call.units(kept, stop)
            if not call.is_over:
                self._requeue(entry, kept, stop)
        if entry.done == kept:
            self._ledger.release(entry)
        self._ledger.update(worker, out)

    def _requeue(self, entry: Entry, start: int, stop: int) -> None:
        """Queue items that a worker gave back and no other worker holds."""
        call, duplicates = entry.call, entry.call.duplicates
        if duplicates is None:
            call.put_back(start, stop)
        else:
            for part in reversed(duplicates.orphans(start, stop, taint=False)):
                call.withdraw(*part)
                suspects, others = duplicates.split(*part)
                for suspect in suspects:
                    call.suspect(*suspect)
                for other in reversed(others):
                    call.put_back(*other)
        self._ledger.queue.add(call, (entry.turn, stop))

    def requeue_overdue(self, now: float) -> None:
        """Queue the items of unanswered revokes as well: the first result counts."""
        for entry in self._ledger.stragglers.overdue(now):
            call, start = entry.call, entry.worker.unbegun(entry)
            if call.is_over or not call.retry or start >= entry.stop:
                continue
            if call.duplicates is None:
                call.duplicates = Duplicates()
            for part in reversed(call.duplicates.add(entry, start, entry.stop)):
                call.withdraw(*part)
                call.put_back(*part)
            self._ledger.queue.add(call, (entry.turn, entry.stop))


class PendingTable:
    """Decides which worker gets which items, and which run again when a worker dies or stalls.

    It has no clock, no thread and no socket, and is not thread-safe: one owner feeds it.

    Args:
        policy: how often a unit may kill its worker.
        batching: how much one entry holds.
        revoking: when work is revoked.
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
        stragglers = StragglerWatch(revoking or RevokePolicy())
        self._ledger = Ledger(stragglers, batching.second_below)
        # shortcuts for the parts that every event looks at
        self._stragglers, self._available, self._total = (
            stragglers,
            self._ledger.available,
            self._ledger.total,
        )
        self._assigner = Assigner(self._ledger, batching)
        self._revoker = Revoker(self._ledger)
        self._handlers: dict[type, Callable[[Any, float, list[Command]], None]] = {
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

    def handle(self, event: events.Event, now: float) -> list[Command]:
        """Take an event in.

        Events about workers, entries and calls that are not, or no longer, known change nothing.

        Args:
            event: what happened.
            now: the moment, by any clock that never goes back.

        Returns:
            Commands to carry out, in this order.

        Raises:
            WireError: a worker's report contradicts what it was given; nothing was changed.
                Close that worker.
            ValueError: a call or worker is added twice, or a closed call grows.
        """
        out: list[Command] = []
        self._handlers[type(event)](event, now, out)
        available = self._available
        if self._total.units and (available.idle or available.fast):
            self._assigner.assign(now, out)
        if available.idle and self._stragglers.heap:
            self._revoker.revoke_from_stuck(now, out)
        return out

    def next_deadline(self) -> float | None:
        """When a :class:`~fiber._tasks.pending.events.Tick` must come; None where none need."""
        watch = self._stragglers
        if not (watch.heap or watch.revokes):
            return None
        return watch.next_deadline(len(self._available.idle))

    # Read access for the dispatcher.

    @property
    def queued(self) -> int:
        """Units that wait for a worker."""
        return self._ledger.total.units

    @property
    def idle(self) -> int:
        """Workers that asked for work and hold none."""
        return len(self._ledger.available.idle)

    @property
    def is_idle(self) -> bool:
        """True where every call is over."""
        return not self._ledger.calls

    @property
    def longest_idle(self) -> tuple[str, float] | None:
        """The worker that has been idle the longest, with the time of its last report."""
        for worker in self._ledger.available.idle:
            return worker.id, worker.since
        return None

    def held(self, worker: str) -> tuple[state.HeldView, ...]:
        """The entries of a worker in the order in which it runs them; none where it is unknown."""
        found = self._ledger.workers.get(worker)
        return () if found is None else tuple(map(state.of_entry, found.held))

    def totals(self) -> state.Totals:
        """Items that wait, run and have ended, of the calls that are not over; a walk over them."""
        running = sum(
            entry.stop - entry.done
            for worker in self._ledger.workers.values()
            for entry in worker.held
            if not entry.call.is_over
        )
        count = finished = 0
        for call in self._ledger.calls.values():
            count += call.count
            finished += call.finished
        # what two workers hold is counted for both
        return state.Totals(max(0, count - finished - running), running, finished)

    def holdings(self, now: float) -> dict[str, state.Holding]:
        """What each worker holds, and for how long its current unit has run; a walk over all of them."""
        # calls of one kind share a pace, and many workers a call
        usual: dict[Pace, float | None] = {}
        found = {}
        for worker in self._ledger.workers.values():
            told = worker.done, tuple(worker.reports)
            if not worker.held:
                found[worker.id] = state.Holding(0, None, 0.0, None, *told)
                continue
            call = worker.held[0].call
            if call.pace not in usual:
                usual[call.pace] = call.pace.median()
            items = sum(entry.stop - entry.done for entry in worker.held)
            seconds = max(0.0, now - worker.since)
            found[worker.id] = state.Holding(items, call.id, seconds, usual[call.pace], *told)
        return found

    # Calls.

    def _call_added(self, event: events.CallAdded, now: float, out: list[Command]) -> None:
        if event.call in self._ledger.calls:
            msg = f"call {event.call} was added twice"
            raise ValueError(msg)
        call = CallState(
            event.call,
            chunk=event.chunksize or 1,
            retry=event.retry,
            pace=self._ledger.pace(event.kind),
            total=self._ledger.total,
            one_by_one=event.one_by_one,
        )
        self._ledger.calls[call.id] = call
        self._grow(call, event.count, event.closed, out)

    def _items_added(self, event: events.ItemsAdded, now: float, out: list[Command]) -> None:
        call = self._ledger.calls.get(event.call)
        if call is None:
            return
        if call.closed:
            msg = f"call {event.call} is closed and cannot grow"
            raise ValueError(msg)
        self._grow(call, event.count, event.closed, out)

    def _grow(self, call: CallState, count: int, closed: bool, out: list[Command]) -> None:
        call.grow(count, closed=closed)
        self._ledger.queue.add(call)
        if closed:
            self._ledger.end_if_complete(call, out)

    def _call_dropped(self, event: events.CallDropped, now: float, out: list[Command]) -> None:
        call = self._ledger.calls.pop(event.call, None)
        if call is None:
            return
        call.forget()
        for worker in self._ledger.workers.values():
            if any(entry.call is call for entry in worker.held):
                self._revoker.revoke_unbegun(worker, now, out, call)
                self._ledger.update(worker, out)

    def _items_withdrawn(
        self, event: events.ItemsWithdrawn, now: float, out: list[Command]
    ) -> None:
        call = self._ledger.calls.get(event.call)
        if call is None:
            return
        if event.start % call.chunk or (event.stop % call.chunk and event.stop != call.count):
            msg = f"items {event.start} to {event.stop} are no whole units of {call.chunk}"
            raise ValueError(msg)
        self._ledger.withdraw(call, event.start, event.stop, out)

    def _size_observed(self, event: events.SizeObserved, now: float, out: list[Command]) -> None:
        call = self._ledger.calls.get(event.call)
        if call is not None:
            call.bytes_per_item = event.bytes_per_item

    # Workers.

    def _worker_joined(self, event: events.WorkerJoined, now: float, out: list[Command]) -> None:
        if event.worker in self._ledger.workers:
            msg = f"worker {event.worker} joined twice"
            raise ValueError(msg)
        worker = WorkerState(event.worker, event.maxtasksperchild, now)
        self._ledger.workers[worker.id] = worker
        self._ledger.update(worker, out)

    def _worker_asked(self, event: events.WorkerAsked, now: float, out: list[Command]) -> None:
        worker = self._ledger.workers.get(event.worker)
        if worker is None or worker.is_closed or worker.is_retired:
            return
        worker.credits += event.credits
        self._ledger.available.update(worker)

    def _worker_draining(
        self, event: events.WorkerDraining, now: float, out: list[Command]
    ) -> None:
        worker = self._ledger.workers.get(event.worker)
        if worker is not None:
            worker.is_closed = True
            if event.hand_back:
                self._revoker.revoke_unbegun(worker, now, out)
            self._ledger.update(worker, out)

    def _worker_lost(self, event: events.WorkerLost, now: float, out: list[Command]) -> None:
        worker = self._ledger.workers.pop(event.worker, None)
        if worker is None:
            return
        worker.is_gone = True
        held = list(worker.held)
        for entry in held:
            self._ledger.release(entry)
        self._ledger.update(worker, out)
        attempt = event.attempt
        blames = event.counts and attempt is not None and attempt.reason.counts_as_attempt
        # Only a unit that was alone is proven to have been there when the worker died.
        alone = len(held) == 1 and held[0].is_single
        for entry in held:
            call, start, stop = entry.call, entry.done, entry.stop
            # one that is done is held where the thread that took its report was interrupted
            if call.is_over or start == stop:
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

    def _units_done(self, event: events.UnitsDone, now: float, out: list[Command]) -> None:
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
            self._available.pace_changed(call.pace)
        worker.since = now
        worker.done += stop - start
        worker.reports.append((call.pace, event.seconds / (stop - start)))
        if call.is_over:
            entry.done = stop
        else:
            self._ledger.accept(entry, stop, out)
        if stop == entry.stop:
            self._ledger.release(entry)
        if event.credits and not (worker.is_closed or worker.is_retired):
            worker.credits += event.credits
        if stop == entry.stop or event.credits:
            self._ledger.update(worker, out)

    def _revoke_answered(
        self, event: events.RevokeAnswered, now: float, out: list[Command]
    ) -> None:
        self._revoker.answered(event, out)

    def _tick(self, event: events.Tick, now: float, out: list[Command]) -> None:
        """Give overdue work to others as well; stuck workers are looked at after every event.

        Only here: by the time a deadline's timer is run, whatever had arrived is read.
        """
        self._revoker.requeue_overdue(now)
