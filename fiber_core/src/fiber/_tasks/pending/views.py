"""Read-only views of the pending table, for the dispatcher, for logs and for tests."""

from __future__ import annotations

from typing import NamedTuple

from fiber._base import values
from fiber._tasks.pending.state import CallState, Entry, Pace, WorkerState


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


@values.frozen(kw_only=True)
class CallView:
    """A call that is not over."""

    #: the call
    call: int
    #: items known so far
    count: int
    #: True where no more can come
    closed: bool
    #: items accepted or abandoned
    finished: int
    #: those of them that were abandoned
    abandoned: int
    #: units that wait
    queued: int
    #: seconds of one unit lately, None until something was measured
    mean: float | None

    @property
    def progress(self) -> float:
        """Share of the known items that is finished, 1.0 where there are none."""
        return self.finished / self.count if self.count else 1.0


@values.frozen(kw_only=True)
class WorkerView:
    """A worker."""

    #: the worker
    worker: str
    #: entries it asked for and did not get yet
    credits: int
    #: units it may still be given, or None
    units_left: int | None
    #: True where it gets nothing more
    is_draining: bool
    #: its entries, in the order in which it runs them
    held: tuple[HeldView, ...]


class Holding(NamedTuple):
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


class Totals(NamedTuple):
    """Items of the calls that are not over."""

    #: that no worker holds
    waiting: int
    #: that workers hold
    running: int
    #: accepted or abandoned
    finished: int


@values.frozen(kw_only=True)
class Snapshot:
    """The whole table at one moment."""

    #: calls that are not over
    calls: tuple[CallView, ...]
    #: workers that are not lost
    workers: tuple[WorkerView, ...]


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


def of_call(call: CallState) -> CallView:
    """Current view of a call."""
    return CallView(
        call=call.id,
        count=call.count,
        closed=call.closed,
        finished=call.finished,
        abandoned=call.abandoned,
        queued=call.queued,
        mean=call.pace.mean,
    )


def of_worker(worker: WorkerState) -> WorkerView:
    """Current view of a worker."""
    return WorkerView(
        worker=worker.id,
        credits=worker.credits,
        units_left=worker.units_left,
        is_draining=worker.is_closed,
        held=tuple(map(of_entry, worker.held)),
    )
