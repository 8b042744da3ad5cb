"""State of the workers: the entries each holds, and which workers can take one more now."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._tasks.pending.batching import Pace
    from fiber._tasks.pending.call_state import CallState

#: entries on a worker at most
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

    __slots__ = ("call", "done", "id", "is_solo", "is_suspect", "revoke", "start", "stop", "worker")

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
    )

    def __init__(self, worker: str, units_left: int | None, now: float) -> None:
        self.id = worker
        #: units it may still be given, or None
        self.units_left = units_left
        #: entries it asked for and did not get yet
        self.credits = 0
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
            elif len(held) < MAX_HELD and not held[0].is_solo and held[0].revoke is RevokeState.NO:
                pace = held[0].call.pace
                queue = pace.waiting
        if queue is worker.queue:
            return
        if worker.queue is not None:
            del worker.queue[worker]
            left = worker.queued_pace
            if left is not None and not left.waiting:
                self.fast.pop(left, None)
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
