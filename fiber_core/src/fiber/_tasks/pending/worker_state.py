"""Workers, what each of them holds, and who can take more right now."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._tasks.pending.batching import Pace
    from fiber._tasks.pending.calls import Call

#: entries on a worker at most
MAX_HELD = 2


class Asked(enum.Enum):
    """Whether an entry was asked back."""

    #: no
    NO = "no"
    #: asked, no answer yet
    WAITING = "waiting"
    #: asked, no answer in time; it may run elsewhere too
    OVERDUE = "overdue"
    #: answered
    ANSWERED = "answered"


class Entry:
    """A range of one call on one worker."""

    __slots__ = ("asked", "call", "done", "id", "is_solo", "is_suspect", "start", "stop", "worker")

    def __init__(
        self,
        entry: int,
        call: Call,
        worker: Worker,
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
        self.asked = Asked.NO

    @property
    def is_single(self) -> bool:
        """True for an entry of one unit."""
        return self.stop - self.start <= self.call.chunk


class Worker:
    """A worker and what it holds."""

    __slots__ = (
        "credits",
        "held",
        "id",
        "is_closed",
        "is_gone",
        "is_retired",
        "is_taker",
        "is_watched",
        "place",
        "quota",
        "since",
        "waits_on",
    )

    def __init__(self, worker: str, quota: int | None, now: float) -> None:
        self.id = worker
        #: units it may still be given, or None
        self.quota = quota
        #: entries it asked for and did not get yet
        self.credits = 0
        #: its entries in the order in which it runs them
        self.held: list[Entry] = []
        #: when it last reported, or was given something after it held nothing
        self.since = now
        #: True where it is draining
        self.is_closed = False
        #: True once it was told to exit
        self.is_retired = False
        #: True while it is counted among those that may be given more
        self.is_taker = False
        #: True once it is lost
        self.is_gone = False
        #: True while the Watch has it in its heap
        self.is_watched = False
        #: where the Lobby put it
        self.place: MutableMapping[Worker, None] | None = None
        #: the pace whose ``waiting`` that is, if it is one
        self.waits_on: Pace | None = None

    def unbegun(self, entry: Entry) -> int:
        """First item of an entry that the worker cannot have begun, by what it reported."""
        if entry is self.held[0]:
            return min(entry.done + entry.call.chunk, entry.stop)
        return entry.done

    @property
    def has_unbegun(self) -> bool:
        """True where work waits behind the unit that it runs."""
        held = self.held
        return len(held) > 1 or (bool(held) and held[0].stop - held[0].done > held[0].call.chunk)


class Lobby:
    """Workers that can take an entry: those that hold nothing, and those that can take a second.

    A worker is put where it belongs whenever something about it changes, so that finding one is a
    look at the front of a line, however many there are.
    """

    __slots__ = ("fast", "idle")

    def __init__(self) -> None:
        #: workers with a credit that hold nothing, the longest idle first
        self.idle: OrderedDict[Worker, None] = OrderedDict()
        #: fast paces that have workers waiting for a second entry
        self.fast: OrderedDict[Pace, None] = OrderedDict()

    def place(self, worker: Worker) -> None:
        """Put a worker where it belongs after something about it changed."""
        place: MutableMapping[Worker, None] | None = None
        pace: Pace | None = None
        if worker.credits and worker.is_taker:
            held = worker.held
            if not held:
                place = self.idle
            elif len(held) < MAX_HELD and not held[0].is_solo and held[0].asked is Asked.NO:
                pace = held[0].call.pace
                place = pace.waiting
        if place is worker.place:
            return
        if worker.place is not None:
            del worker.place[worker]
            left = worker.waits_on
            if left is not None and not left.waiting:
                self.fast.pop(left, None)
        worker.place = place
        worker.waits_on = pace
        if place is not None:
            place[worker] = None
            if pace is not None and pace.is_fast:
                self.fast[pace] = None

    def pace_changed(self, pace: Pace) -> None:
        """Let in, or shut out, those who wait behind an entry of this pace."""
        if pace.is_fast and pace.waiting:
            self.fast[pace] = None
        else:
            self.fast.pop(pace, None)

    def find_idle(self) -> Worker | None:
        """The worker that became idle last: it is warm, and the others may be let go one day."""
        if not self.idle:
            return None
        return next(reversed(self.idle))

    def find_second(self) -> Worker | None:
        """A worker that can take a second entry behind a fast one."""
        if not self.fast:
            return None
        return next(iter(next(iter(self.fast)).waiting))
