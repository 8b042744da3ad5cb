"""Random histories of calls and workers against a model that knows only the rules."""

from __future__ import annotations

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber.model import Reason, ReasonKind
from fiber.model.task import Attempt
from fiber.pending import (
    Abandon,
    Accept,
    CallAdded,
    CallDone,
    CallDropped,
    Dispatch,
    ItemsAdded,
    PendingTable,
    Requeue,
    Retire,
    RetryPolicy,
    Revoke,
    RevokeAnswered,
    SizeObserved,
    Tick,
    UnitsDone,
    WorkerAsked,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)

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
    suspects: set[int] = attrs.Factory(set)
    deaths: dict[int, list[Attempt]] = attrs.Factory(dict)
    given: set[int] = attrs.Factory(set)


class Histories(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.tasks: dict[int, Task] = {}
        self.hands: dict[str, Hand] = {}
        self.names = 0
        self.calls = 0

    @initialize(attempts=st.integers(1, 2), warm=st.booleans(), chunk=st.sampled_from([None, 2]))
    def open(self, attempts, warm, chunk):
        self.max_attempts = attempts
        self.table = PendingTable(policy=RetryPolicy(max_attempts=attempts))
        if warm:
            for _ in range(3):
                self.join(None, 2)
            self.add_call(60, chunk, True, True, None)
            for hand in list(self.hands.values()):
                self.report_and_ask_for(hand, 1, 1e-5)

    # What happens.

    @rule(
        count=st.integers(0, 40),
        chunk=st.sampled_from([None, None, 1, 2, 5]),
        retry=st.sampled_from([True, True, True, False]),
        closed=st.booleans(),
        kind=st.sampled_from([None, "f"]),
    )
    def add_call(self, count, chunk, retry, closed, kind):
        self.calls += 1
        task = self.tasks[self.calls] = Task(
            self.calls, chunk or 1, retry, count=count, closed=closed
        )
        self.feed(CallAdded(task.call, count, chunk, retry, closed, kind))

    @rule(data=st.data(), count=st.integers(0, 12), closed=st.booleans())
    def add_items(self, data, count, closed):
        grown = [task for task in self.tasks.values() if not (task.closed or task.dropped)]
        if grown:
            task = data.draw(st.sampled_from(grown))
            task.count += count
            task.closed = closed
            self.feed(ItemsAdded(task.call, count, closed))

    @precondition(lambda self: len(self.tasks) > 2)
    @rule(data=st.data())
    def drop_call(self, data):
        task = data.draw(st.sampled_from(list(self.tasks.values())))
        if not task.done:
            task.dropped = True
        self.feed(CallDropped(task.call))

    @rule(quota=st.sampled_from([None, None, None, 1, 3, 10]), slots=st.integers(0, 2))
    def join(self, quota, slots):
        self.names += 1
        hand = self.hands[f"w{self.names}"] = Hand(f"w{self.names}", quota)
        self.feed(WorkerJoined(hand.name, quota))
        self.ask_for(hand, slots)

    @rule(data=st.data(), slots=st.integers(1, 2))
    def ask(self, data, slots):
        hand = self.draw_hand(data)
        if hand:
            self.ask_for(hand, slots)

    @rule(data=st.data(), units=st.integers(1, 8), took=st.sampled_from([0.0, 1e-5, 1e-3, 0.02]))
    def report(self, data, units, took):
        hand = self.draw_hand(data, busy=True)
        if hand:
            self.report_for(hand, units, took)

    @rule(data=st.data(), units=st.integers(1, 8), took=st.sampled_from([1e-6, 1e-4]))
    def report_and_ask(self, data, units, took):
        hand = self.draw_hand(data, busy=True)
        if hand:
            self.report_and_ask_for(hand, units, took)

    @rule(
        data=st.data(),
        counts=st.sampled_from([True, True, True, False]),
        kind=st.sampled_from([ReasonKind.SIGNAL, ReasonKind.SIGNAL, ReasonKind.EVICTED, None]),
    )
    def lose(self, data, counts, kind):
        hand = self.draw_hand(data)
        if hand:
            self.lose_hand(hand, counts, kind)

    @rule(data=st.data())
    def drain(self, data):
        hand = self.draw_hand(data)
        if hand:
            hand.draining = True
            self.feed(WorkerDraining(hand.name))

    @rule(data=st.data(), more=st.integers(0, 3))
    def answer_revoke(self, data, more):
        asked = [
            (hand, piece)
            for hand in self.hands.values()
            for piece in hand.pieces
            if piece.revoked_at is not None and not piece.answered
        ]
        if not asked:
            return
        hand, piece = data.draw(st.sampled_from(asked))
        begun = piece.begun_stop if piece is hand.pieces[0] else piece.done
        kept = min(begun + more * piece.chunk, piece.stop)
        task = self.tasks[piece.call]
        if hand.quota is not None:
            hand.given -= -(-(piece.stop - kept) // piece.chunk)
        back = set(range(kept, piece.stop))
        piece.stop = kept
        piece.answered = True
        piece.alone = False
        if piece.done == piece.stop:
            hand.pieces.remove(piece)
        task.given -= back
        self.feed(RevokeAnswered(hand.name, piece.entry, kept))

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.06, 0.12, 1.0]))
    def wait(self, seconds):
        self.now += seconds
        self.feed(Tick())

    @rule(data=st.data(), seconds=st.sampled_from([0.06, 0.2]))
    def stall(self, data, seconds):
        """One worker hangs in front of more work while the others finish theirs."""
        stuck = [
            hand
            for hand in self.hands.values()
            if hand.pieces
            and (len(hand.pieces) > 1 or hand.pieces[0].begun_stop < hand.pieces[0].stop)
        ]
        if not stuck:
            return
        victim = data.draw(st.sampled_from(stuck))
        for _ in range(200):
            busy = [hand for hand in self.hands.values() if hand.pieces and hand is not victim]
            for hand in busy:
                if hand.pieces:
                    self.report_for(hand, 8, 1e-5)
            for hand in list(self.hands.values()):
                if hand is not victim:
                    self.ask_for(hand, 2)
            if not busy:
                break
        self.now += 0.06
        self.feed(Tick())
        self.now += seconds
        self.feed(Tick())

    @rule()
    def wait_as_told(self):
        deadline = self.table.next_deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)
            self.feed(Tick())
            later = self.table.next_deadline()
            assert later is None or later > self.now, "a tick that is due again at once"

    @rule(data=st.data(), size=st.sampled_from([0.0, 100.0, 1e6]))
    def observe_size(self, data, size):
        if self.tasks:
            self.feed(SizeObserved(data.draw(st.sampled_from(list(self.tasks))), size))

    @rule(data=st.data(), entry=st.integers(1, 60), units=st.integers(1, 3))
    def hear_from_the_dead(self, data, entry, units):
        out = self.table.handle(UnitsDone("nobody", entry, 0, units, 0.0), self.now)
        assert not [x for x in out if isinstance(x, Accept)]
        self.take(out, None, set())

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
            elif isinstance(done, Requeue):
                task = self.tasks[done.call]
                assert task.retry
                items = set(range(done.start, done.stop))
                assert {(done.call, item) for item in items} <= freed
                assert not items & (task.accepted | task.abandoned)
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
                assert task.accepted | task.abandoned == set(range(task.count))
                task.done = True

    def finish(self, done, into):
        task = self.tasks[done.call]
        assert not task.dropped
        items = set(range(done.start, done.stop))
        assert items
        assert not items & (task.accepted | task.abandoned)
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
        assert not items & (task.accepted | task.abandoned)
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

    @invariant()
    def nobody_waits_while_somebody_is_idle(self):
        if self.hands:
            able = [
                hand
                for hand in self.hands.values()
                if hand.credits
                and not hand.pieces
                and not (hand.draining or hand.retired or hand.given == hand.quota)
            ]
            assert not (able and self.table.queued)
            assert self.table.idle == len(able)

    @invariant()
    def books_agree(self):
        if not hasattr(self, "table"):
            return
        shot = self.table.snapshot()
        assert self.table.queued == sum(view.queued for view in shot.calls)
        assert self.table.is_idle == (not shot.calls)
        for view in shot.calls:
            task = self.tasks[view.call]
            assert view.finished == len(task.accepted) + len(task.abandoned)
            assert view.abandoned == len(task.abandoned)
        for hand in self.hands.values():
            assert [(piece.entry, piece.done, piece.stop) for piece in hand.pieces] == [
                (view.entry, view.done, view.stop) for view in self.table.held(hand.name)
            ]

    def teardown(self):
        """Whatever happened: with everybody lost and new workers, all calls end."""
        if not hasattr(self, "table"):
            return
        for hand in list(self.hands.values()):
            self.lose_hand(hand, counts=False, kind=None)
        for task in self.tasks.values():
            if not (task.closed or task.dropped):
                task.closed = True
                self.feed(ItemsAdded(task.call, 0, closed=True))
        fresh = []
        for _ in range(3):
            self.names += 1
            fresh.append(Hand(f"w{self.names}", None))
            self.hands[fresh[-1].name] = fresh[-1]
            self.feed(WorkerJoined(fresh[-1].name))
            self.ask_for(fresh[-1], 2)
        for _ in range(10_000):
            busy = [hand for hand in fresh if hand.pieces]
            if not busy:
                break
            for hand in busy:
                if hand.pieces:
                    self.report_for(hand, 5, 1e-4)
                self.ask_for(hand, 2)
        assert self.table.queued == 0
        assert self.table.is_idle
        assert all(task.done or task.dropped for task in self.tasks.values())

    # The world's side of it.

    def draw_hand(self, data, *, busy=False):
        hands = [hand for hand in self.hands.values() if hand.pieces or not busy]
        return data.draw(st.sampled_from(hands)) if hands else None

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
            elsewhere = {
                item
                for other in self.hands.values()
                for held in other.pieces
                if held.call == piece.call
                for item in range(held.done, held.stop)
            }
            if task.retry:
                task.suspects |= items - elsewhere
            freed |= {(piece.call, item) for item in items - elsewhere}
        self.feed(WorkerLost(hand.name, attempt, counts), freed=freed)


Histories.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestHistories = Histories.TestCase
