"""Events that the pending table takes in, commands that it gives out, and limits that it decides by.

A *call* is one map, apply or imap with a number of items. A *unit* is what stays together on one
worker: one item, or ``chunksize`` consecutive ones, counted from item 0. An *entry* is a range of
items ``[start, stop)`` of one call, made of whole units, that was given to one worker.

Commands are carried out by the dispatcher, in order. Nobody changes an event or a command; they are not
frozen, since one of each is made for each short task, and making a frozen one takes three times as long.
"""

from __future__ import annotations

from fiber._base import values
from fiber.model.job import Attempt


@values.define
class CallAdded:
    """A call with ``count`` items was made."""

    #: unique among the calls of this table
    call: int
    #: items known so far
    count: int = values.field(validator=values.ge(0))
    #: items of one unit; None lets the measured duration decide
    chunksize: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    #: False for at most once: what a lost worker had is reported and never run again
    retry: bool = True
    #: False while more items may come
    closed: bool = True
    #: calls of one kind (one function) share their measured durations; None: measured alone
    kind: str | None = None
    #: True for tasks that were given one by one: they begin in the order in which they were added
    one_by_one: bool = False


@values.define
class ItemsAdded:
    """A call that is not closed grew."""

    #: the call
    call: int
    #: how many items more
    count: int = values.field(validator=values.ge(0))
    #: True where these were the last
    closed: bool = False


@values.define
class CallDropped:
    """A call was cancelled: its queued items are forgotten, later results are dropped.

    What workers hold of it and have not begun is revoked.
    """

    #: the call
    call: int


@values.define
class ItemsWithdrawn:
    """Whole units of a call were cancelled: those that were not dispatched never will be."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.define
class WorkerJoined:
    """A worker is up."""

    #: its name, never used twice
    worker: str
    #: units it may be given in its life (``maxtasksperchild``), or None
    maxtasksperchild: int | None = values.field(
        default=None, validator=values.optional(values.ge(1))
    )


@values.define
class WorkerAsked:
    """A worker can take more entries; it never has more than two on the way or in hand."""

    #: the worker
    worker: str
    #: how many more
    credits: int = values.field(default=1, validator=values.ge(0))


@values.define
class UnitsDone:
    """Items ``[start, stop)`` of an entry have results; reports of one entry come in order."""

    #: the worker that ran them
    worker: str
    #: the entry they belong to
    entry: int
    #: first item
    start: int
    #: one past the last item
    stop: int
    #: how long they took, all together
    seconds: float
    #: how many more entries the worker can take, as in :class:`WorkerAsked`
    credits: int = 0


@values.define
class WorkerLost:
    """A worker is gone, for whatever reason."""

    #: the worker
    worker: str
    #: its death, where one was seen
    attempt: Attempt | None = None
    #: False where the work is not to blame: eviction, lease, resize, terminate
    counts: bool = True


@values.define
class WorkerDraining:
    """A worker gets nothing more, and is retired once it holds nothing."""

    #: the worker
    worker: str
    #: True where the platform takes its place away: unbegun items are revoked at once
    hand_back: bool = False


@values.define
class RevokeAnswered:
    """A worker keeps its entry up to ``kept_stop`` and hands back the rest."""

    #: the worker
    worker: str
    #: the entry
    entry: int
    #: one past the last item it keeps
    kept_stop: int


@values.define
class SizeObserved:
    """The arguments of a call were pickled."""

    #: the call
    call: int
    #: mean size of one item
    bytes_per_item: float = values.field(validator=values.ge(0))


@values.define
class Tick:
    """Time passed; due at :meth:`~fiber._tasks.pending.table.PendingTable.next_deadline`."""


Event = (
    CallAdded
    | ItemsAdded
    | CallDropped
    | ItemsWithdrawn
    | WorkerJoined
    | WorkerAsked
    | UnitsDone
    | WorkerLost
    | WorkerDraining
    | RevokeAnswered
    | SizeObserved
    | Tick
)


@values.define
class Dispatch:
    """Send an entry to a worker; with those that go with it, it uses up one of its credits."""

    #: the worker
    worker: str
    #: number of the entry, unique in this table
    entry: int
    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int
    #: items of one unit, counted from ``start``; the last unit may be short
    chunk: int
    #: True where the next entry goes with it, for the same credit
    more: bool = False


@values.define
class Revoke:
    """Send REVOKE: a worker is to hand back the items of an entry that it has not begun."""

    #: the worker
    worker: str
    #: the entry
    entry: int


@values.define
class Accept:
    """Keep these results, the first for their items; results that are not accepted are dropped."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.define
class Abandon:
    """Fail these items: they were given up."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int
    #: the deaths that led to it, oldest first
    attempts: tuple[Attempt, ...]


@values.define
class Withdraw:
    """Fail these items as cancelled: no worker will run them."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.define
class Requeue:
    """Count these items of a lost worker, which will run again; for information only."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.define
class Retire:
    """Send RETIRE: a worker that holds nothing and gets nothing more is to exit."""

    #: the worker
    worker: str


@values.define
class CallDone:
    """End a call: each of its items was accepted, abandoned or withdrawn."""

    #: the call
    call: int


Command = Dispatch | Revoke | Accept | Abandon | Withdraw | Requeue | Retire | CallDone


_at_least_one = values.ge(1)
_positive = values.gt(0.0)


@values.frozen(kw_only=True)
class RetryPolicy:
    """How often a unit of work may kill the worker it is alone on."""

    #: deaths after which the unit is given up
    max_attempts: int = values.field(default=3, validator=_at_least_one)


@values.frozen(kw_only=True)
class BatchPolicy:
    """How much one worker is given at a time."""

    #: seconds of work that one entry aims at; tasks of 1 ms cost 200 µs of CPU each in entries of
    #: this size, 500 in entries of a fifth, and the last entries shrink by themselves
    target: float = values.field(default=0.008, validator=_positive)
    #: seconds that the master spends on an entry, there and back: as long as it takes to give every
    #: worker one, an entry lasts at least, the last ones too
    cost: float = values.field(default=0.00005, validator=values.ge(0.0))
    #: units in one entry at most
    max_units: int = values.field(default=4096, validator=_at_least_one)
    #: entries that go together at most
    max_entries: int = values.field(default=64, validator=_at_least_one)
    #: bytes of arguments in one entry at most, where their size was observed
    max_bytes: int = values.field(default=1 << 20, validator=_at_least_one)
    #: a worker holds a second entry only while 95 of 100 units take less than these seconds
    second_below: float = values.field(default=0.300, validator=_positive)
    #: and units longer than this only while there are more than enough for everybody, so that
    #: none of the last ones waits behind another
    spread_from: float = values.field(default=0.010, validator=_positive)
    #: more than enough: so many units wait for each worker
    spread_below: float = values.field(default=2.0, validator=values.ge(0.0))


@values.frozen(kw_only=True)
class RevokePolicy:
    """When work that waits behind a slow unit is revoked for an idle worker."""

    #: seconds that the unit in front must have run at least
    floor: float = values.field(default=0.05, validator=_positive)
    #: and how many times the mean duration of its call
    factor: float = values.field(default=5.0, validator=_positive)
    #: and seconds for every worker, which :attr:`answer_timeout` has as well: the message to the
    #: last worker is sent after those to all others
    per_worker: float = values.field(default=0.0001, validator=values.ge(0.0))
    #: seconds after which the items of an unanswered revoke are given to another worker as well
    answer_timeout: float = values.field(default=0.1, validator=_positive)
