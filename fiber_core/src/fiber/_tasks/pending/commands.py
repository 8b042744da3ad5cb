"""What the pending table wants done; the dispatcher carries it out in order."""

from __future__ import annotations

from fiber._base import values
from fiber.model.task import Attempt


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
