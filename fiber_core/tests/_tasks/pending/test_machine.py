"""Random histories of calls and workers against a model that knows only the rules."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber._tasks.pending import (
    Accept,
    CallAdded,
    CallDropped,
    ItemsAdded,
    RevokeAnswered,
    SizeObserved,
    Tick,
    UnitsDone,
    WorkerDraining,
    WorkerJoined,
)
from fiber.model import ReasonKind
from pending_world import Hand, Task, World


class Histories(World, RuleBasedStateMachine):
    names = 0
    calls = 0

    @initialize(attempts=st.integers(1, 2), warm=st.booleans(), chunk=st.sampled_from([None, 2]))
    def begin(self, attempts, warm, chunk):
        self.open(attempts)
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

    @rule(data=st.data(), first=st.integers(0, 20), units=st.integers(1, 20))
    def withdraw(self, data, first, units):
        if self.tasks:
            task = data.draw(st.sampled_from(list(self.tasks.values())))
            start = min(first * task.chunk, task.count - task.count % task.chunk)
            self.withdraw_from(task, start, min(start + units * task.chunk, task.count))

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

    @rule(data=st.data(), hand_back=st.booleans())
    def drain(self, data, hand_back):
        hand = self.draw_hand(data)
        if hand:
            hand.draining = True
            self.feed(WorkerDraining(hand.name, hand_back))
            for piece in hand.pieces if hand_back else ():
                begun = piece.begun_stop if piece is hand.pieces[0] else piece.done
                assert begun == piece.stop or piece.revoked_at is not None, "it keeps what waits"

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
        task.suspects |= (back & task.tainted) - self.held_of(task)
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
        if self.table is None:
            return
        shot = self.table.snapshot()
        assert self.table.queued == sum(view.queued for view in shot.calls)
        assert self.table.is_idle == (not shot.calls)
        for view in shot.calls:
            task = self.tasks[view.call]
            assert view.finished == len(task.finished)
            assert view.abandoned == len(task.abandoned)
        for hand in self.hands.values():
            assert [(piece.entry, piece.done, piece.stop) for piece in hand.pieces] == [
                (view.entry, view.done, view.stop) for view in self.table.held(hand.name)
            ]

    def teardown(self):
        """Whatever happened: with everybody lost and new workers, all calls end."""
        if self.table is None:
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

    def draw_hand(self, data, *, busy=False):
        hands = [hand for hand in self.hands.values() if hand.pieces or not busy]
        return data.draw(st.sampled_from(hands)) if hands else None


Histories.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestHistories = Histories.TestCase
