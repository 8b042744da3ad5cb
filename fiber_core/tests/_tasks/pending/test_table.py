"""Events and commands of a pending table: assignment, results, losses, and work taken from the stuck."""

import pytest

from fiber._tasks.pending.events import (
    Accept,
    BatchPolicy,
    CallAdded,
    CallDropped,
    Dispatch,
    ItemsAdded,
    ItemsWithdrawn,
    Retire,
    RetryPolicy,
    Revoke,
    RevokeAnswered,
    RevokePolicy,
    SizeObserved,
    Tick,
    UnitsDone,
    Withdraw,
    WorkerAsked,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from fiber._tasks.pending.state import Totals
from fiber._tasks.pending.table import PendingTable
from fiber.exceptions import WireError
from fiber.model import Reason, ReasonKind
from fiber.model.job import Attempt


def death(worker, kind=ReasonKind.SIGNAL):
    return Attempt(worker=worker, host="here", pid=1, reason=Reason(kind, 9))


def books(table):
    """What the table tells of its calls and workers."""
    workers = table.holdings(0.0)
    held = {name: table.held(name) for name in workers}
    return table.totals(), table.queued, table.idle, workers, held


class Play:
    """A table with a clock and the entries that were dispatched from it."""

    def __init__(self, policy=None):
        # the tests' numbers are those of this target, whatever the default is
        self.table = PendingTable(
            policy=policy,
            batching=BatchPolicy(target=0.0015, cost=0.0),
            revoking=RevokePolicy(per_worker=0.0),
        )
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

    def finish(self, worker, seconds=1e-4, units=None, asks=0):
        """Report the next ``units`` of the entry that a worker runs, or all; each took ``seconds``."""
        held = self.table.held(worker)[0]
        chunk = next(sent.chunk for sent in self.sent if sent.entry == held.entry)
        stop = held.stop if units is None else min(held.stop, held.done + units * chunk)
        took = seconds * -(-(stop - held.done) // chunk)
        return self(UnitsDone(worker, held.entry, held.done, stop, took, asks))

    def turn(self, worker, seconds=1e-4):
        """Report the entry that a worker runs, and let it ask for another."""
        self.finish(worker, seconds, asks=1)

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


def test_before_anything_was_measured_each_worker_gets_one_unit_and_a_million_cost_no_more(play):
    play.join("a", "b", "c", slots=2)
    play(CallAdded(1, 10**6))
    found = [(sent.worker, sent.stop - sent.start) for sent in play.sent]
    assert found == [("c", 1), ("b", 1), ("a", 1)]
    assert len(play.table._ledger.calls[1].ready) == 1


@pytest.mark.parametrize(
    "seconds, spans",
    [(1e-4, [(1, 16), (16, 31)]), (0.4, [(1, 2)])],
    ids=["in batches with a second one behind", "and nothing waits behind a slow unit"],
)
def test_work_comes_as_it_was_measured(play, seconds, spans):
    play.join("a", slots=2)
    play(CallAdded(1, 10_000))
    play.turn("a", seconds)
    assert play.spans("a") == spans


def test_a_worker_gets_a_second_entry_once_others_have_measured(play):
    play.join("a", slots=2)
    play.join("b")
    play(CallAdded(1, 10_000))
    assert len(play.spans("a")) == 1
    play.finish("b")
    assert len(play.spans("a")) == 2


def test_nothing_waits_behind_work_that_has_turned_slow(play):
    play.join("a", slots=2)
    play.join("b")
    play(CallAdded(1, 2, closed=False))
    for event, seconds in ((ItemsAdded(1, 1), 1e-4), (CallAdded(2, 1, closed=False), 0.5)):
        play.turn("b", seconds)
        play(event)
    # work of a fast call, for which only the worker of the slow one has asked
    play.finish("b")
    assert play(ItemsAdded(2, 1)) == []


def test_units_of_middling_length_wait_behind_one_another_until_the_end_is_near(play):
    play.join("a", slots=2)
    play(CallAdded(1, 6))
    held = []
    for _ in range(5):
        play.turn("a", seconds=0.2)
        held.append(play.spans("a"))
    # of the last two for each worker each waits for one that is free
    assert held == [[(1, 2), (2, 3)], [(2, 3), (3, 4)], [(3, 4)], [(4, 5)], [(5, 6)]]


def test_the_last_units_spread_evenly(play):
    play.join("a", "b")
    play(CallAdded(1, 42))
    play.turn("a", seconds=0.0)
    assert play.spans("a") == [(2, 12)]


def test_an_apply_gets_in_during_a_huge_map(play):
    play.join("a", "b", slots=2)
    play(CallAdded(1, 10**6))
    for _ in range(3):
        for worker in ("a", "b"):
            play.turn(worker)
    play(CallAdded(2, 1))
    steps = 0
    while not any(sent.call == 2 for sent in play.sent):
        play.turn("a")
        steps += 1
    assert steps == 3  # the turn of the map, then what the worker held


def test_calls_take_turns(play):
    for call in (1, 2, 3):
        play(CallAdded(call, 100))
    play.join("a")
    for _ in range(5):
        play.turn("a", seconds=0.1)
    assert [sent.call for sent in play.sent] == [1, 2, 3, 1, 2, 3]


def test_tasks_given_one_by_one_begin_in_their_order_and_travel_together_where_they_are_of_one_call(
    play,
):
    for call in (1, 2):
        play(CallAdded(call, 0, closed=False, one_by_one=True))
    for call, count in ((1, 3), (2, 1), (1, 2), (1, 1), (2, 2)):
        play(ItemsAdded(call, count))
    play(CallAdded(3, 1, one_by_one=True))
    play.join("a")
    while play.table.held("a"):
        play.turn("a")
    assert (play.sent[1].start, play.sent[1].stop) == (1, 3)
    tasks = [(sent.call, item) for sent in play.sent for item in range(sent.start, sent.stop)]
    assert tasks == [
        *((1, i) for i in range(3)),
        (2, 0),
        *((1, i) for i in range(3, 6)),
        (2, 1),
        (2, 2),
        (3, 0),
    ]


def alternating(play, count, **options):
    """A worker that runs a task of the second of two calls, and has run one of the first; so many wait, in turns."""
    for call in (1, 2):
        play(CallAdded(call, 0, closed=False, one_by_one=True, **options))
    play.join("a")
    for at in range(2 + count):
        play(ItemsAdded(1 + at % 2, 1))
    play.turn("a")


def test_short_tasks_of_several_calls_go_together_for_one_credit_as_long_as_one_entry_may_last(
    play,
):
    alternating(play, 60)
    before = len(play.sent)
    play.turn("a")
    sent = play.sent[before:]
    # entries aim at 15 tasks of this length
    assert 10 <= len(sent) <= 15
    assert [one.call for one in sent] == [1 + at % 2 for at in range(len(sent))]
    assert [one.more for one in sent] == [True] * (len(sent) - 1) + [False]
    play(WorkerAsked("a", 1))
    after = play.sent[before + len(sent) :]
    assert {one.worker for one in after} == {"a"}
    play(WorkerAsked("a", 1))
    assert len(play.sent) == before + len(sent) + len(after), "it holds entries for two credits"


@pytest.mark.parametrize(
    "seconds,options",
    [
        pytest.param(0.01, {}, id="long ones"),
        pytest.param(1e-4, {"retry": False}, id="at most once"),
    ],
)
def test_others_go_alone(play, seconds, options):
    alternating(play, 20, **options)
    for _ in range(10):
        play.turn("a", seconds)
    assert not any(one.more for one in play.sent[-5:])


def test_one_whose_length_is_not_known_does_not_go_behind_others(play):
    alternating(play, 4)
    play(CallAdded(3, 1, one_by_one=True))
    play(ItemsAdded(1, 1))
    while play.table.queued:
        play.turn("a")
    (unknown,) = [at for at, one in enumerate(play.sent) if one.call == 3]
    assert not play.sent[unknown - 1].more
    assert not play.sent[unknown].more


def test_a_worker_is_given_no_more_than_it_may_run_in_its_life(play):
    for call in (1, 2):
        play(CallAdded(call, 0, closed=False, one_by_one=True))
    play.join("a", maxtasksperchild=8)
    for at in range(40):
        play(ItemsAdded(1 + at % 2, 1))
    while play.table.held("a"):
        play.turn("a")
    assert len(play.sent) == 8
    assert any(one.more for one in play.sent)


def test_entries_that_come_back_in_any_order_are_given_again_in_their_own(play):
    alternating(play, 60)
    play.turn("a")
    play(WorkerDraining("a", hand_back=True))
    held = play.table.held("a")
    for view in (held[3], held[1], held[4], held[2]):
        play(RevokeAnswered("a", view.entry, view.start))
    before = len(play.sent)
    play.join("b")
    while play.table.queued:
        play.turn("b")
    given = [(one.call, one.start) for one in play.sent[before:]]
    assert given[:4] == [(view.call, view.start) for view in held[1:5]]


def test_tasks_given_one_by_one_share_the_turn_of_a_call(play):
    play(CallAdded(1, 100))
    for call in (2, 3, 4):
        play(CallAdded(call, 1, one_by_one=True))
    play.join("a")
    for _ in range(6):
        play.turn("a", seconds=0.1)
    assert [sent.call for sent in play.sent] == [1, 2, 1, 3, 1, 4, 1]


def test_what_comes_back_from_a_worker_is_given_before_tasks_that_were_added_later(play):
    play.join("a")
    play(CallAdded(1, 0, closed=False, one_by_one=True))
    play(ItemsAdded(1, 1))
    play.turn("a")
    play(ItemsAdded(1, 8))
    play(CallAdded(2, 1, one_by_one=True))
    play(WorkerDraining("a", hand_back=True))
    held = play.table.held("a")[0]
    play(RevokeAnswered("a", held.entry, held.start + 1))
    play.join("b")
    assert (play.entry("b").call, play.entry("b").start) == (1, held.start + 1)


def test_calls_of_one_kind_share_what_was_measured(play):
    play.join("a", slots=2)
    play(CallAdded(1, 1, kind="f"))
    play.turn("a", seconds=1e-4)
    play(CallAdded(2, 1000, kind="f"))
    play(CallAdded(3, 1000, kind="g"))
    assert play.spans("a") == [(0, 15), (15, 30)]


@pytest.mark.parametrize(
    "event",
    [
        ItemsAdded(9, 1),
        CallDropped(9),
        ItemsWithdrawn(9, 0, 1),
        SizeObserved(9, 1.0),
        WorkerAsked("x"),
        WorkerDraining("x"),
        WorkerLost("x"),
        UnitsDone("x", 1, 0, 1, 0.0),
        Tick(),
    ],
)
def test_events_about_the_unknown_change_nothing(play, event):
    assert play(event) == []
    assert books(play.table) == books(PendingTable())


@pytest.mark.parametrize(
    "start, stop, seconds",
    [(1, 4, 0.0), (0, 3, 0.0), (0, 9, 0.0), (0, 0, 0.0), (0, 4, -1.0), (0, 4, float("nan"))],
)
def test_a_report_that_contradicts_the_table_is_refused_and_changes_nothing(
    play, start, stop, seconds
):
    play.join("a")
    play(CallAdded(1, 8, 4))
    sent = play.entry("a")
    before = books(play.table)
    with pytest.raises(WireError, match="worker a reports"):
        play(UnitsDone("a", sent.entry, start, stop, seconds))
    assert books(play.table) == before
    assert play(UnitsDone("b", sent.entry, 0, 4, 0.0)) == []


def test_a_mistake_of_the_dispatcher_is_raised(play):
    play.join("a")
    play(CallAdded(1, 8))
    with pytest.raises(ValueError, match="call 1 was added twice"):
        play(CallAdded(1, 8))
    with pytest.raises(ValueError, match="call 1 is closed"):
        play(ItemsAdded(1, 8))
    with pytest.raises(ValueError, match="worker a joined twice"):
        play(WorkerJoined("a"))


def test_parts_of_units_cannot_be_withdrawn(play):
    play(CallAdded(1, 5, 2))
    with pytest.raises(ValueError, match="no whole units"):
        play(ItemsWithdrawn(1, 1, 4))
    assert play(ItemsWithdrawn(1, 2, 5)) == [Withdraw(1, 2, 5)]


def test_the_table_tells_how_far_its_calls_are(play):
    play.join("a")
    play(CallAdded(1, 4))
    play.finish("a", seconds=0.5)
    play(CallAdded(2, 0, closed=False))

    assert play.table.totals() == Totals(waiting=3, running=0, finished=1)


def test_the_longest_idle_worker_is_the_one_that_may_be_let_go(play):
    assert play.table.longest_idle is None
    play.join("a")
    play.now = 130.0
    play.join("b")
    assert play.table.longest_idle == ("a", 100.0)
    assert play.table.idle == 2
    assert play.table.is_idle


# Values that cannot be.


@pytest.mark.parametrize(
    "policy, field",
    [(RetryPolicy, "max_attempts"), (BatchPolicy, "max_units"), (RevokePolicy, "answer_timeout")],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(policy, field):
    with pytest.raises(ValueError, match=field):
        policy(**{field: 0})


# Work that waits behind a slow unit, and the idle workers it is asked back for.


@pytest.fixture
def stuck(play):
    """Worker a holds items 2 to 11 and reports nothing; b is idle."""
    play.join("a", maxtasksperchild=20)
    play.join("b")
    play(CallAdded(1, 38))
    play.turn("a", seconds=1e-6)
    assert play.spans("a") == [(2, 11)]
    while play.spans("b"):
        play.turn("b", seconds=1e-6)
    return play


def asked_back(play):
    return [done for done in play.wait(0.05) if isinstance(done, Revoke)]


def test_the_table_says_when_it_must_look_again_and_asks_once(stuck):
    assert stuck.table.next_deadline() == pytest.approx(stuck.now + 0.05)
    assert stuck.wait(0.049) == []
    (revoke,) = asked_back(stuck)
    assert revoke == Revoke("a", stuck.entry("a").entry)
    assert stuck.table.next_deadline() == pytest.approx(stuck.now + 0.1)
    assert stuck.wait(0.09) == []
    # it keeps everything
    assert stuck(RevokeAnswered("a", revoke.entry, 11)) == []
    assert stuck.wait(5.0) == []


def test_nothing_is_asked_back_while_work_is_queued(play):
    play.join("a", slots=2)
    play(CallAdded(1, 10_000))
    play.turn("a")
    assert play.table.next_deadline() is None
    assert play.wait(5.0) == []


def test_a_worker_that_makes_progress_is_left_alone(stuck):
    for _ in range(4):
        assert stuck.wait(0.04) == []
        stuck.finish("a", units=1, seconds=0.04)


def test_what_is_handed_back_goes_to_the_idle_worker_as_a_batch(stuck):
    (revoke,) = asked_back(stuck)
    out = stuck(RevokeAnswered("a", revoke.entry, 3))
    assert out == [Dispatch("b", stuck.entry("b").entry, 1, 3, 5, 1)]
    assert not stuck.table.held("b")[0].is_suspect
    assert stuck.spans("a") == [(2, 3)]


def copies(out):
    return [(done.worker, done.start) for done in out if isinstance(done, Dispatch)]


def test_without_an_answer_others_are_given_the_same_work_once_the_table_is_told_the_time(stuck):
    asked_back(stuck)
    stuck.now += 0.1
    # the answer may be here and not read: only a tick comes after what was to be read
    assert stuck(SizeObserved(1, 1.0)) == []
    assert copies(stuck.wait(0.0)) == [("b", 3)]


def test_a_table_that_is_told_the_time_far_too_late_waits_once_more_for_an_answer(stuck):
    asked_back(stuck)
    assert copies(stuck.wait(0.16)) == []
    assert copies(stuck.wait(0.09)) == []
    # it is not put off for ever
    assert copies(stuck.wait(5.0)) == [("b", 3)]


def test_what_the_lost_copy_may_have_begun_travels_alone_when_it_is_handed_back(stuck):
    (revoke,) = asked_back(stuck)
    stuck.wait(0.1)
    copy = stuck.spans("b")[0]
    stuck.kill("b")
    stuck(RevokeAnswered("a", revoke.entry, 3))
    stuck.join("c", slots=2)
    for item in range(*copy):
        assert stuck.spans("c") == [(item, item + 1)]
        assert stuck.table.held("c")[0].is_suspect
        stuck.turn("c")
    assert not stuck.table.held("c")[0].is_suspect


@pytest.mark.parametrize("kept, is_asked", [(1, True), (12, True), (3, False)])
def test_an_answer_that_makes_no_sense_is_refused(stuck, kept, is_asked):
    if is_asked:
        asked_back(stuck)
    with pytest.raises(WireError, match="worker a keeps"):
        stuck(RevokeAnswered("a", stuck.entry("a").entry, kept))


# Workers whose place is taken away.


def test_what_it_gives_back_goes_to_others_at_once_and_it_exits_after_its_last_unit(stuck):
    (revoke,) = stuck(WorkerDraining("a", hand_back=True))
    assert revoke == Revoke("a", stuck.entry("a").entry)
    (sent,) = stuck(RevokeAnswered("a", revoke.entry, 3))
    assert (sent.worker, sent.start) == ("b", 3)
    assert stuck.finish("a") == [Accept(1, 2, 3), Retire("a")]


def test_of_a_dropped_call_workers_hand_back_what_they_have_not_begun(play):
    play.join("a", slots=2)
    play(CallAdded(1, 1, kind="f"))
    play.turn("a", seconds=1e-4)
    play(CallAdded(2, 10, kind="f"))
    assert play.spans("a") == [(0, 5), (5, 8)]
    running, waiting = play.table.held("a")
    revokes = [Revoke("a", running.entry), Revoke("a", waiting.entry)]
    assert play(CallDropped(2)) == revokes
    assert play(RevokeAnswered("a", waiting.entry, 5)) == []
    assert play(RevokeAnswered("a", running.entry, 1)) == []
    assert play.spans("a") == [(0, 1)]
    assert play.finish("a") == []
