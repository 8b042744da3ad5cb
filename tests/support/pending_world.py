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
PATIENCE = 0.1


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
class Hand:
    """A worker as the world sees it."""

    name: str
    quota: int | None
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
    """Feeds the table, does what it instructs, and asserts that each instruction is allowed."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.tasks: dict[int, Task] = {}
        self.hands: dict[str, Hand] = {}
        self.max_attempts = 0
        self.table = None

    def open(self, attempts):
        """Begin with an empty table."""
        self.max_attempts = attempts
        self.table = PendingTable(policy=RetryPolicy(max_attempts=attempts))

    # The world's side of it.

    def ask_for(self, hand, slots):
        slots = min(slots, 2 - hand.credits - len(hand.pieces))
        if slots > 0 and not hand.retired:
            hand.credits += slots
            self.feed(WorkerAsked(hand.name, slots))

    def report_and_ask_for(self, hand, units, took):
        if hand.pieces:
            self.report_for(hand, units, took)
        self.ask_for(hand, 2)

    def report_for(self, hand, units, took):
        piece = hand.pieces[0]
        start, stop = piece.done, min(piece.done + units * piece.chunk, piece.stop)
        self.now += took
        piece.done = stop
        if stop == piece.stop:
            hand.pieces.pop(0)
        self.feed(
            UnitsDone(hand.name, piece.entry, start, stop, took),
            reported=(piece.call, start, stop),
        )
        task = self.tasks[piece.call]
        task.suspects -= set(range(start, stop))

    def lose_hand(self, hand, counts, kind):
        del self.hands[hand.name]
        attempt = None
        if kind is not None:
            attempt = Attempt(worker=hand.name, host="here", pid=1, reason=Reason(kind, 9))
        blames = counts and kind is ReasonKind.SIGNAL
        freed = set()
        for piece in hand.pieces:
            task = self.tasks[piece.call]
            items = set(range(piece.done, piece.stop))
            single = len(hand.pieces) == 1 and piece.stop - piece.start <= piece.chunk
            if single and blames:
                task.deaths.setdefault(piece.done, []).append(attempt)
            elsewhere = self.held_of(task)
            if task.retry:
                task.suspects |= items - elsewhere
                task.tainted |= items & elsewhere
            freed |= {(piece.call, item) for item in items - elsewhere}
        self.feed(WorkerLost(hand.name, attempt, counts), freed=freed)

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
            for hand in self.hands.values()
            for piece in hand.pieces
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
                (piece,) = [p for p in self.hands[done.worker].pieces if p.entry == done.entry]
                assert self.tasks[piece.call].retry
                assert piece.revoked_at is None
                piece.revoked_at = self.now
            elif isinstance(done, Retire):
                hand = self.hands[done.worker]
                assert not hand.retired
                assert not hand.pieces
                assert hand.draining or hand.given == hand.quota
                hand.retired = True
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
        hand, task = self.hands[done.worker], self.tasks[done.call]
        items = set(range(done.start, done.stop))
        assert hand.credits > 0
        hand.credits -= 1
        assert not hand.draining
        assert not hand.retired
        assert not task.dropped
        assert not task.done
        assert len(hand.pieces) < 2
        assert not any(piece.alone for piece in hand.pieces)
        assert 0 <= done.start < done.stop <= task.count
        assert done.start % task.chunk == 0
        assert done.stop % task.chunk == 0 or (task.closed and done.stop == task.count)
        assert done.chunk == task.chunk
        assert not items & task.finished
        units = -(-len(items) // task.chunk)
        hand.given += units
        assert hand.quota is None or hand.given <= hand.quota
        for other in self.hands.values():
            for piece in other.pieces:
                both = items & set(range(piece.done, piece.stop))
                if piece.call == done.call and both:
                    assert other is not hand
                    assert task.retry
                    assert piece.revoked_at is not None
                    assert self.now >= piece.revoked_at + PATIENCE
        alone = bool(items & task.suspects) or not task.retry
        if alone:
            assert not hand.pieces
            assert units == 1
        if not task.retry:
            assert not items & task.given, "at most once"
        task.given |= items
        hand.pieces.append(
            Piece(done.entry, done.call, done.start, done.stop, task.chunk, done.start, alone)
        )
