"""State of the calls and workers in the pending table, and the size of the entries that workers get.

A :class:`CallState` knows which items of a call wait, as ranges, and how many are finished; the function,
the arguments and the result sink of the same call are a :class:`fiber._tasks.call.Call`. A
:class:`WorkerState` holds entries; :class:`AvailableWorkers` can take one more now. :func:`batch_units`
sizes an entry by the recent durations of its call's units, its :class:`Pace`.

:class:`StragglerWatch` finds workers that hold work behind a slow unit, and revokes without an answer.
Items are duplicated only where a revoke was not answered in time and another worker was given the
same items as well; the first result counts. So a call has a :class:`Duplicates` only after its
first such revoke, and calls without one pay nothing.

The views are read-only, for the dispatcher, for logs and for tests.
"""

from __future__ import annotations

import enum
import heapq
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._tasks.pending.events import BatchPolicy, RevokePolicy

if TYPE_CHECKING:
    from fiber.model.job import Attempt


#: items ``[start, stop)``
Range = tuple[int, int]


class RangeSet:
    """A set of ints held as disjoint ranges that do not touch."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._stops, strict=True)

    def add(self, start: int, stop: int) -> None:
        """Add ``[start, stop)``."""
        if start >= stop:
            return
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        if low < high:
            start = min(start, self._starts[low])
            stop = max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]

    def within(self, start: int, stop: int) -> list[Range]:
        """The parts of ``[start, stop)`` that are in the set."""
        found = []
        at = bisect_right(self._stops, start)
        while at < len(self._starts) and self._starts[at] < stop:
            found.append((max(start, self._starts[at]), min(stop, self._stops[at])))
            at += 1
        return found

    def outside(self, start: int, stop: int) -> list[Range]:
        """The parts of ``[start, stop)`` that are not in the set."""
        found = []
        for inner_start, inner_stop in self.within(start, stop):
            if start < inner_start:
                found.append((start, inner_start))
            start = inner_stop
        if start < stop:
            found.append((start, stop))
        return found


#: reports that are remembered
WINDOW = 64


class Pace:
    """Recent durations of the units of a call, or of several calls of one kind.

    A report says what several units took together, so one sample is the mean of one report.
    Whether 95 of 100 samples lie below a limit needs no sorting: the samples above are counted.
    """

    __slots__ = ("_at", "_limit", "_ring", "_seconds", "_slow", "_units", "is_fast", "waiting")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._ring: list[tuple[int, float]] = []
        self._at = 0
        self._units = 0
        self._seconds = 0.0
        self._slow = 0
        #: True while the 95th percentile lies below the limit; False until something was measured
        self.is_fast = False
        #: workers with a credit that hold one entry of this pace, kept by AvailableWorkers
        self.waiting: OrderedDict[WorkerState, None] = OrderedDict()

    @property
    def mean(self) -> float | None:
        """Seconds of one unit, or None until something was measured."""
        return self._seconds / self._units if self._units else None

    def median(self) -> float | None:
        """Seconds of the median unit, or None until something was measured; sorts the samples."""
        samples = sorted(seconds / units for units, seconds in self._ring)
        return samples[len(samples) // 2] if samples else None

    def add(self, units: int, seconds: float) -> bool:
        """Take a report in.

        Returns:
            True where ``is_fast`` changed.
        """
        ring = self._ring
        slow = seconds >= self._limit * units
        if len(ring) < WINDOW:
            ring.append((units, seconds))
        else:
            at = self._at
            old_units, old_seconds = ring[at]
            ring[at] = (units, seconds)
            self._units -= old_units
            self._seconds -= old_seconds
            self._slow -= old_seconds >= self._limit * old_units
            self._at = (at + 1) % WINDOW
        self._units += units
        self._seconds += seconds
        self._slow += slow
        if self._at == 0 and len(ring) == WINDOW:
            # Adding and taking away rounds; once a turn the sum starts afresh.
            self._seconds = sum(sample[1] for sample in ring)
        was = self.is_fast
        self.is_fast = self._slow * 20 <= len(ring)
        return self.is_fast is not was


def batch_units(
    policy: BatchPolicy,
    mean: float | None,
    queued: int,
    workers: int,
    units_left: int | None,
    bytes_per_unit: float,
) -> int:
    """How many units the next entry may have, at least one.

    Args:
        policy: the limits.
        mean: seconds of one unit; None before anything was measured, which gives one unit.
        queued: units of the call that wait; as they run dry the entries shrink.
        workers: how many share them.
        units_left: units that the worker may still be given, or None.
        bytes_per_unit: size of the arguments; 0 where unknown.
    """
    if mean is None:
        return 1
    # shorter ones would leave all but a few waiting for the master
    least = workers * policy.cost
    units = _units_of(max(policy.target, least), mean, policy.max_units)
    spread = -(-queued // (2 * workers))
    if spread < units:
        units = max(spread, _units_of(least, mean, units))
    if bytes_per_unit * units > policy.max_bytes:
        units = int(policy.max_bytes / bytes_per_unit)
    if units_left is not None and units_left < units:
        units = units_left
    return max(1, units)


def _units_of(seconds: float, mean: float, most: int) -> int:
    """How many units take so long; never more than ``most``."""
    # compared before divided: a mean close to zero has no finite quotient
    if mean * most < seconds:
        return most
    return int(seconds / mean) if mean else 0


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
        "one_by_one",
        "pace",
        "queued",
        "ready",
        "retry",
        "suspects",
        "tail",
        "total",
    )

    def __init__(
        self,
        call: int,
        *,
        chunk: int,
        retry: bool,
        pace: Pace,
        total: SharedCount,
        one_by_one: bool = False,
    ) -> None:
        self.id = call
        #: True where its items begin in their order with those of other such calls
        self.one_by_one = one_by_one
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
        """Queue ``[start, stop)`` again, before all that comes behind it."""
        self._queue(self.units(start, stop))
        at = 0
        # none but what was put back as well
        while at < len(self.ready) and self.ready[at][0] < start:
            at += 1
        self.ready.insert(at, (start, stop))

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


#: credits for which a worker holds entries, at most
MAX_HELD = 2
#: reports of a worker that tell whether it is slow
_REPORTS = 16


class RevokeState(enum.Enum):
    """Where the revoke of an entry stands."""

    #: not revoked
    NO = "no"
    #: sent, no answer yet
    WAITING = "waiting"
    #: no answer in time; another worker may be given the same items
    OVERDUE = "overdue"
    #: answered
    ANSWERED = "answered"


class Entry:
    """A range of one call on one worker."""

    __slots__ = (
        "call",
        "done",
        "id",
        "is_solo",
        "is_suspect",
        "more",
        "revoke",
        "start",
        "stop",
        "turn",
        "worker",
    )

    def __init__(
        self,
        entry: int,
        call: CallState,
        worker: WorkerState,
        start: int,
        stop: int,
        *,
        is_suspect: bool,
    ) -> None:
        self.id = entry
        self.call = call
        self.worker = worker
        self.start = start
        self.stop = stop
        #: items before this one are reported
        self.done = start
        #: True where a lost worker may have begun it
        self.is_suspect = is_suspect
        #: True where nothing may be sent behind it
        self.is_solo = is_suspect or not call.retry
        #: True where the next entry was sent with it, for the same credit
        self.more = False
        #: the number of its tasks' turn, where they were given one by one
        self.turn = 0
        self.revoke = RevokeState.NO

    @property
    def is_single(self) -> bool:
        """True for an entry of one unit."""
        return self.stop - self.start <= self.call.chunk


class WorkerState:
    """State of one worker and the entries it holds."""

    __slots__ = (
        "credits",
        "done",
        "held",
        "id",
        "is_closed",
        "is_gone",
        "is_retired",
        "is_taker",
        "is_watched",
        "queue",
        "queued_pace",
        "reports",
        "since",
        "units_left",
        "used",
    )

    def __init__(self, worker: str, units_left: int | None, now: float) -> None:
        self.id = worker
        #: units it may still be given, or None
        self.units_left = units_left
        #: entries it asked for and did not get yet
        self.credits = 0
        #: credits for which it holds entries
        self.used = 0
        #: its entries in the order in which it runs them
        self.held: list[Entry] = []
        #: when it last reported, or was given something after it held nothing
        self.since = now
        #: items that it has reported
        self.done = 0
        #: of its last reports the pace of their call, and the seconds of one item
        self.reports: deque[tuple[Pace, float]] = deque(maxlen=_REPORTS)
        #: True where it is draining
        self.is_closed = False
        #: True once it was sent RETIRE
        self.is_retired = False
        #: True while it is counted among those that may be given more
        self.is_taker = False
        #: True once it is lost
        self.is_gone = False
        #: True while the StragglerWatch has it in its heap
        self.is_watched = False
        #: the queue of available workers that it stands in, if any
        self.queue: MutableMapping[WorkerState, None] | None = None
        #: the pace whose ``waiting`` that queue is, if it is one
        self.queued_pace: Pace | None = None

    def unbegun(self, entry: Entry) -> int:
        """First item of an entry that the worker cannot have begun, judged by its reports."""
        if entry is self.held[0]:
            return min(entry.done + entry.call.chunk, entry.stop)
        return entry.done

    @property
    def has_unbegun(self) -> bool:
        """True where work waits behind the unit that it runs."""
        held = self.held
        return len(held) > 1 or (bool(held) and held[0].stop - held[0].done > held[0].call.chunk)


class AvailableWorkers:
    """Workers that can take an entry: those that hold nothing, and those that can take a second.

    A worker is moved between these queues whenever something about it changes, so that finding one
    takes the same time however many there are.
    """

    __slots__ = ("fast", "idle")

    def __init__(self) -> None:
        #: workers with a credit that hold nothing, the longest idle first
        self.idle: OrderedDict[WorkerState, None] = OrderedDict()
        #: fast paces that have workers waiting for a second entry
        self.fast: OrderedDict[Pace, None] = OrderedDict()

    def update(self, worker: WorkerState) -> None:
        """Move a worker to the queue it belongs to after something about it changed."""
        queue: MutableMapping[WorkerState, None] | None = None
        pace: Pace | None = None
        if worker.credits and worker.is_taker:
            held = worker.held
            if not held:
                queue = self.idle
            elif (
                worker.used < MAX_HELD and not held[0].is_solo and held[0].revoke is RevokeState.NO
            ):
                pace = held[0].call.pace
                queue = pace.waiting
        if queue is worker.queue:
            return
        # no call from here on: a signal's handler may raise behind each
        if worker.queue is not None:
            del worker.queue[worker]
            left = worker.queued_pace
            if left is not None and not left.waiting and left in self.fast:
                del self.fast[left]
        worker.queue = queue
        worker.queued_pace = pace
        if queue is not None:
            queue[worker] = None
            if pace is not None and pace.is_fast:
                self.fast[pace] = None

    def pace_changed(self, pace: Pace) -> None:
        """Let the workers that run an entry of this pace take a second one, or no longer."""
        if pace.is_fast and pace.waiting:
            self.fast[pace] = None
        else:
            self.fast.pop(pace, None)

    def find_idle(self) -> WorkerState | None:
        """The worker that became idle last: it is warm, and the others may be retired one day."""
        if not self.idle:
            return None
        return next(reversed(self.idle))

    def find_second(self) -> WorkerState | None:
        """A worker that can take a second entry behind a fast one."""
        if not self.fast:
            return None
        return next(iter(next(iter(self.fast)).waiting))


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


@values.frozen(kw_only=True)
class HeldView:
    """An entry on a worker."""

    #: its number
    entry: int
    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int
    #: items before this one are reported
    done: int
    #: True where a lost worker may have begun it
    is_suspect: bool


@values.frozen
class Holding:
    """What a worker holds."""

    #: how many items, those behind the first entry among them
    items: int
    #: the call of the first one; None where it holds nothing
    call: int | None = None
    #: seconds for which its current unit has run
    seconds: float = 0.0
    #: seconds of the median unit of that call lately; None until something was measured
    usual: float | None = None
    #: items that it has reported
    done: int = 0
    #: of its last reports, oldest first, the pace of their call and the seconds of one item
    reports: tuple[tuple[Pace, float], ...] = ()


@values.frozen
class Totals:
    """Items of the calls that are not over."""

    #: that no worker holds
    waiting: int
    #: that workers hold
    running: int
    #: accepted or abandoned
    finished: int


def of_entry(entry: Entry) -> HeldView:
    """Current view of an entry."""
    return HeldView(
        entry=entry.id,
        call=entry.call.id,
        start=entry.start,
        stop=entry.stop,
        done=entry.done,
        is_suspect=entry.is_suspect,
    )
