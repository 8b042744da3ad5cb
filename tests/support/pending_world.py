"""A world for the pending table: callers and workers that know the rules and nothing else."""

from __future__ import annotations

import attrs

from fiber._tasks.pending import (
    Abandon,
    Accept,
    CallDone,
    Dispatch,
    ItemsWithdrawn,
    PendingTable,
    Requeue,
    Retire,
    RetryPolicy,
    Revoke,
    UnitsDone,
    Withdraw,
    WorkerAsked,
    WorkerLost,
)
from fiber.model import Reason, ReasonKind
from fiber.model.job import Attempt

#: seconds after which an unanswered revoke lets the same units go elsewhere
ANSWER_TIMEOUT = 0.1


@attrs.define(eq=False)
class Piece:
    """An entry as the worker sees it."""

    entry: int
    call: int
    start: int
    stop: int
    chunk: int
    done: int
    alone: bool
    revoked_at: float | None = None
    answered: bool = False

    @property
    def begun_stop(self) -> int:
        return min(self.done + self.chunk, self.stop)


@attrs.define(eq=False)
class ModelWorker:
    """A worker as the world sees it."""

    name: str
    maxtasksperchild: int | None
    credits: int = 0
    given: int = 0
    pieces: list[Piece] = attrs.Factory(list)
    draining: bool = False
    retired: bool = False


@attrs.define(eq=False)
class Task:
    """A call as the caller sees it."""

    call: int
    chunk: int
    retry: bool
    count: int = 0
    closed: bool = False
    dropped: bool = False
    done: bool = False
    accepted: set[int] = attrs.Factory(set)
    abandoned: set[int] = attrs.Factory(set)
    withdrawn: set[int] = attrs.Factory(set)
    #: what a lost worker may have begun, and nobody else holds: each unit travels alone
    suspects: set[int] = attrs.Factory(set)
    #: what a lost worker may have begun while somebody else held it too
    tainted: set[int] = attrs.Factory(set)
    deaths: dict[int, list[Attempt]] = attrs.Factory(dict)
    given: set[int] = attrs.Factory(set)

    @property
    def finished(self) -> set[int]:
        return self.accepted | self.abandoned | self.withdrawn


class World:
    """Feeds the table, carries out its commands, and asserts that each command is allowed."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.tasks: dict[int, Task] = {}
        self.models: dict[str, ModelWorker] = {}
        self.max_attempts = 0
        self.table = None

    def open(self, attempts):
        """Begin with an empty table."""
        self.max_attempts = attempts
        self.table = PendingTable(policy=RetryPolicy(max_attempts=attempts))

    # The world's side of it.

    def ask_for(self, model, slots):
        slots = min(slots, 2 - model.credits - len(model.pieces))
        if slots > 0 and not model.retired:
            model.credits += slots
            self.feed(WorkerAsked(model.name, slots))

    def report_and_ask_for(self, model, units, took):
        if model.pieces:
            self.report_for(model, units, took)
        self.ask_for(model, 2)

    def report_for(self, model, units, took):
        piece = model.pieces[0]
        start, stop = piece.done, min(piece.done + units * piece.chunk, piece.stop)
        self.now += took
        piece.done = stop
        if stop == piece.stop:
            model.pieces.pop(0)
        self.feed(
            UnitsDone(model.name, piece.entry, start, stop, took),
            reported=(piece.call, start, stop),
        )
        task = self.tasks[piece.call]
        task.suspects -= set(range(start, stop))

    def lose_model(self, model, counts, kind):
        del self.models[model.name]
        attempt = None
        if kind is not None:
            attempt = Attempt(worker=model.name, host="here", pid=1, reason=Reason(kind, 9))
        blames = counts and kind is ReasonKind.SIGNAL
        freed = set()
        for piece in model.pieces:
            task = self.tasks[piece.call]
            items = set(range(piece.done, piece.stop))
            single = len(model.pieces) == 1 and piece.stop - piece.start <= piece.chunk
            if single and blames:
                task.deaths.setdefault(piece.done, []).append(attempt)
            held_by_others = self.held_of(task)
            if task.retry:
                task.suspects |= items - held_by_others
                task.tainted |= items & held_by_others
            freed |= {(piece.call, item) for item in items - held_by_others}
        self.feed(WorkerLost(model.name, attempt, counts), freed=freed)

    def withdraw_from(self, task, start, stop):
        # what somebody holds, or may have begun, is none of it
        waits = set(range(start, min(stop, task.count))) - self.held_of(task)
        waits -= task.given | task.finished | task.suspects
        if not task.closed:
            waits &= set(range(task.count - task.count % task.chunk))
        self.feed(ItemsWithdrawn(task.call, start, stop))
        assert task.dropped or task.done or waits <= task.withdrawn, "it would run all the same"

    def held_of(self, task):
        """The items of a call that workers hold."""
        return {
            item
            for model in self.models.values()
            for piece in model.pieces
            if piece.call == task.call
            for item in range(piece.done, piece.stop)
        }

    # What must hold.

    def feed(self, event, *, reported=None, freed=()):
        self.take(self.table.handle(event, self.now), reported, set(freed))

    def take(self, out, reported, freed):
        """Check instructions; ``reported`` is (call, start, stop), ``freed`` (call, item)s lost."""
        for done in out:
            if isinstance(done, Dispatch):
                self.on_dispatch(done)
            elif isinstance(done, Accept):
                assert reported is not None
                call, start, stop = reported
                assert done.call == call
                assert start <= done.start < done.stop <= stop
                self.finish(done, self.tasks[call].accepted)
            elif isinstance(done, Abandon):
                task = self.tasks[done.call]
                self.finish(done, task.abandoned)
                assert done.stop - done.start <= task.chunk
                if task.retry:
                    assert list(done.attempts) == task.deaths.get(done.start, [])
                    assert len(done.attempts) == self.max_attempts
                else:
                    assert len(done.attempts) <= 1
            elif isinstance(done, Withdraw):
                self.finish(done, self.tasks[done.call].withdrawn)
            elif isinstance(done, Requeue):
                task = self.tasks[done.call]
                assert task.retry
                items = set(range(done.start, done.stop))
                assert {(done.call, item) for item in items} <= freed
                assert not items & task.finished
            elif isinstance(done, Revoke):
                (piece,) = [p for p in self.models[done.worker].pieces if p.entry == done.entry]
                assert self.tasks[piece.call].retry
                assert piece.revoked_at is None
                piece.revoked_at = self.now
            elif isinstance(done, Retire):
                model = self.models[done.worker]
                assert not model.retired
                assert not model.pieces
                assert model.draining or model.given == model.maxtasksperchild
                model.retired = True
            else:
                assert isinstance(done, CallDone)
                task = self.tasks[done.call]
                assert not task.done
                assert not task.dropped
                assert task.closed
                assert task.finished == set(range(task.count))
                task.done = True

    def finish(self, done, into):
        task = self.tasks[done.call]
        assert not task.dropped
        items = set(range(done.start, done.stop))
        assert items
        assert not items & task.finished
        into |= items

    def on_dispatch(self, done):
        model, task = self.models[done.worker], self.tasks[done.call]
        items = set(range(done.start, done.stop))
        assert model.credits > 0
        model.credits -= 1
        assert not model.draining
        assert not model.retired
        assert not task.dropped
        assert not task.done
        assert len(model.pieces) < 2
        assert not any(piece.alone for piece in model.pieces)
        assert 0 <= done.start < done.stop <= task.count
        assert done.start % task.chunk == 0
        assert done.stop % task.chunk == 0 or (task.closed and done.stop == task.count)
        assert done.chunk == task.chunk
        assert not items & task.finished
        units = -(-len(items) // task.chunk)
        model.given += units
        assert model.maxtasksperchild is None or model.given <= model.maxtasksperchild
        for other in self.models.values():
            for piece in other.pieces:
                both = items & set(range(piece.done, piece.stop))
                if piece.call == done.call and both:
                    assert other is not model
                    assert task.retry
                    assert piece.revoked_at is not None
                    assert self.now >= piece.revoked_at + ANSWER_TIMEOUT
        alone = bool(items & task.suspects) or not task.retry
        if alone:
            assert not model.pieces
            assert units == 1
        if not task.retry:
            assert not items & task.given, "at most once"
        task.given |= items
        model.pieces.append(
            Piece(done.entry, done.call, done.start, done.stop, task.chunk, done.start, alone)
        )
