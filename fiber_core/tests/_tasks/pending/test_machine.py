"""Random histories of calls and workers against a model that knows only the rules."""

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber._tasks.pending.events import (
    Abandon,
    Accept,
    CallAdded,
    CallDone,
    CallDropped,
    Dispatch,
    ItemsAdded,
    ItemsWithdrawn,
    Requeue,
    Retire,
    RetryPolicy,
    Revoke,
    RevokeAnswered,
    SizeObserved,
    Tick,
    UnitsDone,
    Withdraw,
    WorkerAsked,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from fiber._tasks.pending.table import PendingTable
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
    #: True where the next one was sent with it, for the same credit
    more: bool = False
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

    @property
    def used(self) -> int:
        """Credits for which it holds pieces."""
        return sum(not piece.more for piece in self.pieces)


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
    one_by_one: bool = False
    #: of each item, how many items were added to any call before
    position: list[int] = attrs.Factory(list)

    @property
    def fresh(self) -> set[int]:
        """Items that wait and were never given to a worker."""
        if self.dropped or self.done:
            return set()
        return set(range(self.count)) - self.given - self.finished

    @property
    def finished(self) -> set[int]:
        return self.accepted | self.abandoned | self.withdrawn


class Histories(RuleBasedStateMachine):
    """Feeds the table, carries out its commands, and asserts that each command is allowed."""

    names = calls = added = 0

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.tasks: dict[int, Task] = {}
        self.models: dict[str, ModelWorker] = {}
        self.table = None

    @initialize(attempts=st.integers(1, 2), warm=st.booleans(), chunk=st.sampled_from([None, 2]))
    def begin(self, attempts, warm, chunk):
        self.max_attempts = attempts
        self.table = PendingTable(policy=RetryPolicy(max_attempts=attempts))
        if warm:
            for _ in range(3):
                self.join(None, 2)
            self.add_call(60, chunk, True, True, "f", False)
            for model in list(self.models.values()):
                self.report_and_ask_for(model, 1, 1e-5)

    # The world's side of it.

    def ask_for(self, model, slots):
        slots = min(slots, 2 - model.credits - model.used)
        if slots > 0 and not model.retired:
            model.credits += slots
            self.feed(WorkerAsked(model.name, slots))

    def report_and_ask_for(self, model, units, took):
        if model.pieces:
            self.report_for(model, units, took, asks=True)
        self.ask_for(model, 2)

    def report_for(self, model, units, took, *, asks=False):
        piece = model.pieces[0]
        start, stop = piece.done, min(piece.done + units * piece.chunk, piece.stop)
        self.now += took
        piece.done = stop
        if stop == piece.stop:
            model.pieces.pop(0)
        credits_ = int(asks and not model.retired and model.credits + model.used < 2)
        model.credits += credits_
        self.feed(
            UnitsDone(model.name, piece.entry, start, stop, took, credits_),
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
        before = None
        for done in out:
            if isinstance(done, Dispatch):
                self.on_dispatch(done, before)
                before = done if done.more else None
                continue
            assert before is None, "what goes with it is not there"
            if isinstance(done, Retire):
                self.on_retire(done)
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
            else:
                assert isinstance(done, CallDone)
                task = self.tasks[done.call]
                assert not task.done
                assert not task.dropped
                assert task.closed
                assert task.finished == set(range(task.count))
                task.done = True
        assert before is None

    def on_retire(self, done):
        model = self.models[done.worker]
        assert not model.retired
        assert not model.pieces
        assert model.draining or model.given == model.maxtasksperchild
        model.retired = True

    def finish(self, done, into):
        task = self.tasks[done.call]
        assert not task.dropped
        items = set(range(done.start, done.stop))
        assert items
        assert not items & task.finished
        into |= items

    def on_dispatch(self, done, before):
        model, task = self.models[done.worker], self.tasks[done.call]
        items = set(range(done.start, done.stop))
        if before is None:
            assert model.credits > 0
            model.credits -= 1
            assert model.used < 2
        else:
            assert before.worker == done.worker
            assert task.one_by_one
        assert not (done.more and not task.one_by_one)
        assert not model.draining
        assert not model.retired
        assert not task.dropped
        assert not task.done
        assert not any(piece.alone for piece in model.pieces)
        assert all(piece.revoked_at is None for piece in model.pieces[:1])
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
        if task.one_by_one and not items & task.given:
            last = max(task.position[item] for item in items)
            for other in self.tasks.values():
                if other.one_by_one:
                    waiting = other.fresh - (items if other is task else set())
                    assert all(other.position[item] > last for item in waiting), "out of order"
        task.given |= items
        model.pieces.append(
            Piece(
                done.entry,
                done.call,
                done.start,
                done.stop,
                task.chunk,
                done.start,
                alone,
                done.more,
            )
        )

    # What happens.

    @rule(
        count=st.integers(0, 40),
        chunk=st.sampled_from([None, None, 1, 2, 5]),
        retry=st.sampled_from([True, True, True, False]),
        closed=st.booleans(),
        kind=st.sampled_from([None, "f"]),
        one_by_one=st.booleans(),
    )
    def add_call(self, count, chunk, retry, closed, kind, one_by_one):
        if one_by_one:
            chunk = None
        self.calls += 1
        task = self.tasks[self.calls] = Task(
            self.calls, chunk or 1, retry, closed=closed, one_by_one=one_by_one
        )
        self.grow(task, count)
        self.feed(CallAdded(task.call, count, chunk, retry, closed, kind, one_by_one))

    def grow(self, task, count):
        task.count += count
        task.position += range(self.added, self.added + count)
        self.added += count

    @rule(data=st.data(), count=st.integers(0, 12), closed=st.booleans())
    def add_items(self, data, count, closed):
        grown = [task for task in self.tasks.values() if not (task.closed or task.dropped)]
        if grown:
            task = data.draw(st.sampled_from(grown))
            self.grow(task, count)
            task.closed = closed
            self.feed(ItemsAdded(task.call, count, closed))

    @rule(
        count=st.integers(2, 30),
        kinds=st.lists(st.sampled_from(["f", "g"]), min_size=2, max_size=3),
    )
    def alternate(self, count, kinds):
        """Tasks of some functions are given one by one, in turns."""
        first = self.calls + 1
        for kind in kinds:
            self.add_call(0, None, True, False, kind, True)
        for at in range(count):
            task = self.tasks[first + at % len(kinds)]
            self.grow(task, 1)
            self.feed(ItemsAdded(task.call, 1))

    @precondition(lambda self: len(self.tasks) > 2)
    @rule(data=st.data())
    def drop_call(self, data):
        task = data.draw(st.sampled_from(list(self.tasks.values())))
        if not task.done:
            task.dropped = True
        self.feed(CallDropped(task.call))

    @rule(data=st.data(), first=st.integers(0, 20), units=st.integers(1, 20))
    def withdraw(self, data, first, units):
        if not self.tasks:
            return
        task = data.draw(st.sampled_from(list(self.tasks.values())))
        whole = task.count - task.count % task.chunk
        start = min(first * task.chunk, whole)
        stop = min(start + units * task.chunk, task.count)
        # what somebody holds, or may have begun, is none of it
        waits = set(range(start, stop if task.closed else min(stop, whole)))
        waits -= self.held_of(task) | task.given | task.finished | task.suspects
        self.feed(ItemsWithdrawn(task.call, start, stop))
        assert task.dropped or task.done or waits <= task.withdrawn, "it would run all the same"

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
        kind=st.sampled_from(
            [*[ReasonKind.SIGNAL] * 3, ReasonKind.EVICTED, ReasonKind.LEASE, None]
        ),
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

    @rule(data=st.data(), seconds=st.sampled_from([0.06, 0.12, 0.2]))
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
    def whoever_can_get_no_more_is_retired(self):
        for model in self.models.values():
            is_over = model.draining or model.given == model.maxtasksperchild
            assert model.retired == (is_over and not model.pieces)

    @invariant()
    def books_agree(self):
        calls = self.table._ledger.calls
        assert self.table.queued == sum(call.queued for call in calls.values())
        assert self.table.is_idle == (not calls)
        for number, call in calls.items():
            assert call.finished == len(self.tasks[number].finished)
            assert call.abandoned == len(self.tasks[number].abandoned)
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
        for _ in range(3):
            self.join(None, 2)
        for _ in range(10_000):
            busy = [model for model in self.models.values() if model.pieces]
            if not busy:
                break
            for model in busy:
                self.report_and_ask_for(model, 5, 1e-4)
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
# a busy machine takes a minute for what takes seconds
TestHistories = pytest.mark.timeout(600)(Histories.TestCase)
