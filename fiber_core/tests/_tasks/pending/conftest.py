"""A pending table with workers played by the tests, and a clock that tests move."""

from __future__ import annotations

import pytest

from fiber._tasks.pending import (
    BatchPolicy,
    Dispatch,
    PendingTable,
    RevokePolicy,
    Tick,
    UnitsDone,
    WorkerAsked,
    WorkerJoined,
    WorkerLost,
)
from fiber.model import Reason, ReasonKind
from fiber.model.job import Attempt


def death(worker, kind=ReasonKind.SIGNAL, number=9):
    return Attempt(worker=worker, host="here", pid=1, reason=Reason(kind, number))


class Play:
    """A table with a clock and the entries that were dispatched from it."""

    def __init__(self, **policies):
        # the tests' numbers are those of this target, whatever the default is
        policies.setdefault("batching", BatchPolicy(target=0.0015, cost=0.0))
        policies.setdefault("revoking", RevokePolicy(per_worker=0.0))
        self.table = PendingTable(**policies)
        self.now = 100.0
        self.sent = []

    def __call__(self, event):
        out = self.table.handle(event, self.now)
        self.sent += [done for done in out if isinstance(done, Dispatch)]
        return out

    def join(self, *workers, slots=1, maxtasksperchild=None):
        """Let workers join and ask; returns the commands."""
        out = []
        for worker in workers:
            out += self(WorkerJoined(worker, maxtasksperchild))
            out += self(WorkerAsked(worker, slots))
        return out

    def entry(self, worker):
        """The entry that was sent to a worker last."""
        return [sent for sent in self.sent if sent.worker == worker][-1]

    def finish(self, worker, seconds=1e-4, units=None):
        """Report the next ``units`` of the entry that a worker runs, or all; each took ``seconds``."""
        held = self.table.held(worker)[0]
        chunk = next(sent.chunk for sent in self.sent if sent.entry == held.entry)
        stop = held.stop if units is None else min(held.stop, held.done + units * chunk)
        took = seconds * -(-(stop - held.done) // chunk)
        return self(UnitsDone(worker, held.entry, held.done, stop, took))

    def turn(self, worker, seconds=1e-4):
        """Report the entry that a worker runs, and let it ask for another."""
        self.finish(worker, seconds)
        self(WorkerAsked(worker))

    def kill(self, worker, kind=ReasonKind.SIGNAL, counts=True):
        return self(WorkerLost(worker, death(worker, kind), counts))

    def wait(self, seconds):
        self.now += seconds
        return self(Tick())

    def spans(self, worker):
        """The entries of a worker, as (start, stop) of items."""
        return [(held.start, held.stop) for held in self.table.held(worker)]


@pytest.fixture
def play():
    return Play()


@pytest.fixture
def play_with():
    return Play


@pytest.fixture
def died():
    return death
