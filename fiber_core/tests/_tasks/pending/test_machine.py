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
from pending_world import ModelWorker, Task, World


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
            for model in list(self.models.values()):
                self.report_and_ask_for(model, 1, 1e-5)

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

    @rule(maxtasksperchild=st.sampled_from([None, None, None, 1, 3, 10]), slots=st.integers(0, 2))
    def join(self, maxtasksperchild, slots):
        self.names += 1
        model = self.models[f"w{self.names}"] = ModelWorker(f"w{self.names}", maxtasksperchild)
        self.feed(WorkerJoined(model.name, maxtasksperchild))
        self.ask_for(model, slots)

    @rule(data=st.data(), slots=st.integers(1, 2))
    def ask(self, data, slots):
        model = self.draw_hand(data)
        if model:
            self.ask_for(model, slots)

    @rule(data=st.data(), units=st.integers(1, 8), took=st.sampled_from([0.0, 1e-5, 1e-3, 0.02]))
    def report(self, data, units, took):
        model = self.draw_hand(data, busy=True)
        if model:
            self.report_for(model, units, took)

    @rule(data=st.data(), units=st.integers(1, 8), took=st.sampled_from([1e-6, 1e-4]))
    def report_and_ask(self, data, units, took):
        model = self.draw_hand(data, busy=True)
        if model:
            self.report_and_ask_for(model, units, took)

    @rule(
        data=st.data(),
        counts=st.sampled_from([True, True, True, False]),
        kind=st.sampled_from([ReasonKind.SIGNAL, ReasonKind.SIGNAL, ReasonKind.EVICTED, None]),
    )
    def lose(self, data, counts, kind):
        model = self.draw_hand(data)
        if model:
            self.lose_model(model, counts, kind)

    @rule(data=st.data(), hand_back=st.booleans())
    def drain(self, data, hand_back):
        model = self.draw_hand(data)
        if model:
            model.draining = True
            self.feed(WorkerDraining(model.name, hand_back))
            for piece in model.pieces if hand_back else ():
                begun = piece.begun_stop if piece is model.pieces[0] else piece.done
                assert begun == piece.stop or piece.revoked_at is not None, "it keeps what waits"

    @rule(data=st.data(), more=st.integers(0, 3))
    def answer_revoke(self, data, more):
        asked = [
            (model, piece)
            for model in self.models.values()
            for piece in model.pieces
            if piece.revoked_at is not None and not piece.answered
        ]
        if not asked:
            return
        model, piece = data.draw(st.sampled_from(asked))
        begun = piece.begun_stop if piece is model.pieces[0] else piece.done
        kept = min(begun + more * piece.chunk, piece.stop)
        task = self.tasks[piece.call]
        if model.maxtasksperchild is not None:
            model.given -= -(-(piece.stop - kept) // piece.chunk)
        back = set(range(kept, piece.stop))
        piece.stop = kept
        piece.answered = True
        piece.alone = False
        if piece.done == piece.stop:
            model.pieces.remove(piece)
        task.given -= back
        task.suspects |= (back & task.tainted) - self.held_of(task)
        self.feed(RevokeAnswered(model.name, piece.entry, kept))

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.06, 0.12, 1.0]))
    def wait(self, seconds):
        self.now += seconds
        self.feed(Tick())

    @rule(data=st.data(), seconds=st.sampled_from([0.06, 0.2]))
    def stall(self, data, seconds):
        """One worker hangs in front of more work while the others finish theirs."""
        stuck = [
            model
            for model in self.models.values()
            if model.pieces
            and (len(model.pieces) > 1 or model.pieces[0].begun_stop < model.pieces[0].stop)
        ]
        if not stuck:
            return
        victim = data.draw(st.sampled_from(stuck))
        for _ in range(200):
            busy = [model for model in self.models.values() if model.pieces and model is not victim]
            for model in busy:
                if model.pieces:
                    self.report_for(model, 8, 1e-5)
            for model in list(self.models.values()):
                if model is not victim:
                    self.ask_for(model, 2)
            if not busy:
                break
        self.now += 0.06
        self.feed(Tick())
        self.now += seconds
        self.feed(Tick())

    @rule()
    def wait_until_the_deadline(self):
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
    def report_of_a_lost_worker(self, data, entry, units):
        out = self.table.handle(UnitsDone("nobody", entry, 0, units, 0.0), self.now)
        assert not [x for x in out if isinstance(x, Accept)]
        self.take(out, None, set())

    @invariant()
    def no_unit_waits_while_a_worker_is_idle(self):
        if self.models:
            able = [
                model
                for model in self.models.values()
                if model.credits
                and not model.pieces
                and not (model.draining or model.retired or model.given == model.maxtasksperchild)
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
        for model in self.models.values():
            assert [(piece.entry, piece.done, piece.stop) for piece in model.pieces] == [
                (view.entry, view.done, view.stop) for view in self.table.held(model.name)
            ]

    def teardown(self):
        """After any history, with all workers lost and new ones, all calls end."""
        if self.table is None:
            return
        for model in list(self.models.values()):
            self.lose_model(model, counts=False, kind=None)
        for task in self.tasks.values():
            if not (task.closed or task.dropped):
                task.closed = True
                self.feed(ItemsAdded(task.call, 0, closed=True))
        fresh = []
        for _ in range(3):
            self.names += 1
            fresh.append(ModelWorker(f"w{self.names}", None))
            self.models[fresh[-1].name] = fresh[-1]
            self.feed(WorkerJoined(fresh[-1].name))
            self.ask_for(fresh[-1], 2)
        for _ in range(10_000):
            busy = [model for model in fresh if model.pieces]
            if not busy:
                break
            for model in busy:
                if model.pieces:
                    self.report_for(model, 5, 1e-4)
                self.ask_for(model, 2)
        assert self.table.queued == 0
        assert self.table.is_idle
        assert all(task.done or task.dropped for task in self.tasks.values())

    def draw_hand(self, data, *, busy=False):
        models = [model for model in self.models.values() if model.pieces or not busy]
        return data.draw(st.sampled_from(models)) if models else None


Histories.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestHistories = Histories.TestCase
