"""What the pending table is told: calls, workers, results, losses and the passing of time.

A *call* is one map, apply or imap with a number of items. A *unit* is what stays together on one
worker: one item, or ``chunksize`` consecutive ones, counted from item 0. An *entry* is a range of
items ``[start, stop)`` of one call, made of whole units, that was given to one worker.

What the pending table wants done; the dispatcher carries it out in order.
"""

from __future__ import annotations

from fiber._base import values
from fiber.model.job import Attempt


@values.frozen
class CallAdded:
    """A caller wants ``count`` items done."""

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


@values.frozen
class ItemsAdded:
    """A call that is not closed grew."""

    #: the call
    call: int
    #: how many items more
    count: int = values.field(validator=values.ge(0))
    #: True where these were the last
    closed: bool = False


@values.frozen
class CallDropped:
    """The caller gave up: what is queued is forgotten, later results are dropped."""

    #: the call
    call: int


@values.frozen
class ItemsWithdrawn:
    """The caller wants these whole units no more: those that were not dispatched never will be."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.frozen
class WorkerJoined:
    """A worker is up."""

    #: its name, never used twice
    worker: str
    #: units it may be given in its life (``maxtasksperchild``), or None
    quota: int | None = values.field(default=None, validator=values.optional(values.ge(1)))


@values.frozen
class WorkerAsked:
    """A worker can take more entries; it never has more than two on the way or in hand."""

    #: the worker
    worker: str
    #: how many more
    credits: int = values.field(default=1, validator=values.ge(0))


@values.frozen
class UnitsDone:
    """Items ``[start, stop)`` of an entry have results; reports of one entry come in order."""

    #: who did them
    worker: str
    #: the entry they belong to
    entry: int
    #: first item
    start: int
    #: one past the last item
    stop: int
    #: how long they took, all together
    seconds: float


@values.frozen
class WorkerLost:
    """A worker is gone, for whatever reason."""

    #: the worker
    worker: str
    #: its death, where one was seen
    attempt: Attempt | None = None
    #: False where the work is not to blame: eviction, lease, resize, terminate
    counts: bool = True


@values.frozen
class WorkerDraining:
    """A worker gets nothing more, and is retired once it holds nothing."""

    #: the worker
    worker: str
    #: True where its place is taken away: what it has not begun is asked back at once
    hand_back: bool = False


@values.frozen
class RevokeAnswered:
    """A worker will do its entry up to ``kept_stop`` and hands back the rest."""

    #: the worker
    worker: str
    #: the entry
    entry: int
    #: one past the last item it keeps
    kept_stop: int


@values.frozen
class SizeObserved:
    """The arguments of a call were pickled."""

    #: the call
    call: int
    #: mean size of one item
    bytes_per_item: float = values.field(validator=values.ge(0))


@values.frozen
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


@values.frozen
class Dispatch:
    """Send an entry to a worker; one of its credits is used up."""

    #: to whom
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


@values.frozen
class Revoke:
    """Ask a worker to hand back what it has not begun of an entry."""

    #: whom
    worker: str
    #: the entry
    entry: int


@values.frozen
class Accept:
    """These results are the first for their items: keep them. What is not accepted is dropped."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.frozen
class Abandon:
    """These items are given up."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int
    #: the deaths that led to it, oldest first
    attempts: tuple[Attempt, ...]


@values.frozen
class Withdraw:
    """These items were withdrawn in time: nobody will run them."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.frozen
class Requeue:
    """These items of a lost worker will run again (for information)."""

    #: the call
    call: int
    #: first item
    start: int
    #: one past the last item
    stop: int


@values.frozen
class Retire:
    """Tell a worker to exit: it holds nothing and gets nothing more."""

    #: whom
    worker: str


@values.frozen
class CallDone:
    """Every item of a closed call was accepted, abandoned or withdrawn."""

    #: the call
    call: int


Instruction = Dispatch | Revoke | Accept | Abandon | Withdraw | Requeue | Retire | CallDone
