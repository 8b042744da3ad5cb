"""What a pending table is made of: sizes of entries, calls, workers, queues, ranges and stragglers."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks.pending.batching import WINDOW, Pace, batch_units
from fiber._tasks.pending.call_state import CallState, SharedCount
from fiber._tasks.pending.ledger import KINDS, FairQueue, Ledger
from fiber._tasks.pending.policy import BatchPolicy, RevokePolicy
from fiber._tasks.pending.ranges import RangeSet
from fiber._tasks.pending.stragglers import Duplicates, StragglerWatch
from fiber._tasks.pending.worker_state import AvailableWorkers, Entry, RevokeState, WorkerState


def call_state(chunk=1, *, number=1, retry=True, total=None):
    total = SharedCount() if total is None else total
    return CallState(number, chunk=chunk, retry=retry, pace=Pace(0.01), total=total)


def entry(holder, start=0, stop=10, *, number=1, chunk=1, retry=True, is_suspect=False):
    held = Entry(number, call_state(chunk, retry=retry), holder, start, stop, is_suspect=is_suspect)
    holder.held.append(held)
    return held


# Sizes of entries.

POLICY = BatchPolicy(target=0.0015, cost=0.0)


def size(mean, queued=10**6, workers=1, units_left=None, bytes_per_unit=0.0):
    return batch_units(POLICY, mean, queued, workers, units_left, bytes_per_unit)


def test_what_was_never_measured_goes_one_by_one():
    assert size(None) == 1


@pytest.mark.parametrize(
    "mean, units", [(1.0, 1), (0.0015, 1), (0.0005, 3), (1e-5, 150), (1e-9, 4096), (0.0, 4096)]
)
def test_an_entry_aims_at_the_target(mean, units):
    assert size(mean) == pytest.approx(units, abs=1)


def test_entries_shrink_as_the_queue_runs_dry():
    assert [size(1e-6, queued=queued, workers=4) for queued in (8000, 80, 9, 8, 1)] == [
        1000, 10, 2, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "mean, workers, queued, units",
    [
        (1e-6, 4, 80, 200),
        (1e-6, 4, 10**6, 1500),
        (1e-6, 1000, 80, 4096),
        (1e-3, 1000, 10**6, 50),
        (1e-3, 4, 9, 1),
        (0.0, 4, 8, 4096),
    ],
)
def test_an_entry_lasts_as_long_as_giving_every_worker_one(mean, workers, queued, units):
    policy = BatchPolicy(target=0.0015, cost=0.00005)

    assert batch_units(policy, mean, queued, workers, None, 0.0) == units


def test_an_entry_stays_below_its_bytes_and_has_one_unit_at_least():
    assert size(1e-6, bytes_per_unit=2**18) == 4
    assert size(1e-6, bytes_per_unit=2**30) == 1


def test_no_more_is_given_than_the_worker_may_do():
    assert size(1e-6, units_left=7) == 7


def test_a_pace_is_slow_until_measured():
    pace = Pace(0.01)
    assert not pace.is_fast
    assert pace.mean is None
    assert pace.add(1, 0.001)
    assert pace.is_fast


def test_five_slow_samples_in_a_hundred_are_forgiven_and_more_are_not():
    pace = Pace(0.01)
    for _ in range(WINDOW - 3):
        pace.add(1, 0.001)
    for _ in range(3):
        assert not pace.add(1, 0.5)
    assert pace.is_fast
    assert pace.add(1, 0.5)
    assert not pace.is_fast


def test_old_samples_are_forgotten():
    pace = Pace(0.01)
    pace.add(1, 100.0)
    for _ in range(WINDOW):
        pace.add(10, 0.02)
    assert pace.is_fast
    assert pace.mean == pytest.approx(0.002)


@given(
    st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 1e6)), min_size=1, max_size=3 * WINDOW)
)
def test_a_pace_counts_what_sorting_would_find(samples):
    pace = Pace(0.01)
    for units, seconds in samples:
        was = pace.is_fast
        assert pace.add(units, seconds) is (pace.is_fast is not was)
    window = samples[-WINDOW:]
    slow = [units for units, seconds in window if seconds >= 0.01 * units]
    assert pace.is_fast == (len(slow) <= 0.05 * len(window))
    mean = sum(seconds for _, seconds in window) / sum(units for units, _ in window)
    assert pace.mean == pytest.approx(mean, rel=1e-6, abs=1e-6)


# Items of a call.


@pytest.fixture
def total():
    return SharedCount()


@pytest.fixture
def make(total):
    return functools.partial(call_state, total=total)


def test_a_million_items_wait_as_one_range(make, total):
    call = make()
    call.grow(10**6, closed=True)
    assert list(call.ready) == [(0, 10**6)]
    assert call.take(64) == (0, 64)
    assert total.units == call.queued == 10**6 - 64


def test_a_unit_that_is_not_full_waits_for_the_rest_of_it(make):
    call = make(chunk=4)
    call.grow(6, closed=False)
    assert list(call.ready) == [(0, 4)]
    call.grow(1, closed=False)
    assert list(call.ready) == [(0, 4)]
    call.grow(0, closed=True)
    assert list(call.ready) == [(0, 7)]
    assert call.queued == 2
    assert [call.take(1), call.take(1)] == [(0, 4), (4, 7)]


def test_what_is_handed_back_goes_first(make):
    call = make()
    call.grow(10, closed=True)
    call.take(4)
    call.put_back(2, 4)
    assert call.take(100) == (2, 4)
    assert call.take(100) == (4, 10)


def test_suspects_are_taken_one_unit_at_a_time(make, total):
    call = make(chunk=3)
    call.grow(8, closed=True)
    call.take(3)
    call.suspect(0, 8)
    assert [call.take_suspect() for _ in range(3)] == [(0, 3), (3, 6), (6, 8)]
    assert total.units == 0


def test_withdrawing_cuts_ranges_where_it_must(make, total):
    call = make()
    call.grow(10, closed=True)
    call.withdraw(3, 6)
    assert list(call.ready) == [(0, 3), (6, 10)]
    call.withdraw(0, 8)
    assert list(call.ready) == [(8, 10)]
    assert total.units == call.queued == 2


def test_a_forgotten_call_counts_for_nothing(make, total):
    call = make()
    call.grow(10, closed=False)
    call.suspect(0, 2)
    call.forget()
    assert call.is_over
    assert total.units == call.queued == 0


def test_waiting_items_are_listed_by_range(make):
    call = make()
    call.grow(10, closed=True)
    call.withdraw(4, 6)
    assert call.waiting(2, 8) == [(2, 4), (6, 8)]
    assert call.waiting(4, 6) == []


# Turns of calls.


def calls(number):
    made = [call_state(number=n) for n in range(number)]
    for call in made:
        call.grow(4, closed=True)
    return made


def test_each_call_has_its_turn():
    queue = FairQueue()
    made = calls(3)
    for call in made:
        queue.add(call)
        queue.add(call)
    seen = []
    for _ in range(6):
        seen.append(queue.next_ordinary())
        queue.rotate_ordinary()
    assert seen == made * 2


def test_a_call_without_work_is_skipped_and_may_come_back():
    queue = FairQueue()
    empty, full = calls(2)
    queue.add(empty)
    queue.add(full)
    empty.take(100)
    assert queue.next_ordinary() is full
    empty.put_back(0, 1)
    queue.add(empty)
    queue.rotate_ordinary()
    assert queue.next_ordinary() is empty
    empty.forget()
    full.forget()
    assert queue.next_ordinary() is None


def test_suspects_have_a_queue_of_their_own():
    queue = FairQueue()
    first, second = calls(2)
    for call in (first, second):
        call.suspect(0, 2)
        queue.add(call)
    seen = []
    while (call := queue.next_suspect()) is not None:
        call.take_suspect()
        seen.append(call)
        queue.rotate_suspects()
    assert seen == [first, second, first, second]


@pytest.fixture
def ledger():
    return Ledger(StragglerWatch(RevokePolicy()), 0.01)


def test_a_kind_has_one_pace_and_no_kind_its_own(ledger):
    assert ledger.pace("f") is ledger.pace("f")
    assert ledger.pace("f") is not ledger.pace("g")
    assert ledger.pace(None) is not ledger.pace(None)


def test_the_kinds_that_were_not_used_for_long_are_forgotten(ledger):
    kept, old = ledger.pace("kept"), ledger.pace("old")
    for number in range(KINDS - 1):
        ledger.pace(str(number))
        assert ledger.pace("kept") is kept
    assert ledger.pace("old") is not old


# Workers.


def worker(name="w", slots=1):
    made = WorkerState(name, None, 0.0)
    made.credits = slots
    made.is_taker = True
    return made


@pytest.fixture
def available():
    return AvailableWorkers()


def test_a_worker_that_asked_for_nothing_is_not_idle(available):
    available.update(worker(slots=0))
    assert available.find_idle() is None


def test_the_worker_that_became_idle_last_is_taken_first(available):
    old, new = worker("old"), worker("new")
    available.update(old)
    available.update(new)
    assert available.find_idle() is new
    assert list(available.idle) == [old, new]


def test_a_second_entry_goes_behind_a_fast_one_only(available):
    busy = worker()
    pace = entry(busy).call.pace
    available.update(busy)
    assert available.find_second() is None
    pace.add(1, 0.001)
    available.pace_changed(pace)
    assert available.find_second() is busy
    for _ in range(5):
        pace.add(1, 5.0)
    available.pace_changed(pace)
    assert available.find_second() is None


@pytest.mark.parametrize("why", ["suspect", "at most once", "asked back", "two held", "no credit"])
def test_nothing_goes_behind(available, why):
    busy = worker(slots=0 if why == "no credit" else 1)
    held = entry(busy, retry=why != "at most once", is_suspect=why == "suspect")
    held.call.pace.add(1, 0.001)
    if why == "asked back":
        held.revoke = RevokeState.WAITING
    if why == "two held":
        entry(busy)
    available.update(busy)
    assert available.find_second() is None


def test_a_worker_that_leaves_is_found_no_more(available):
    idle, busy = worker("idle"), worker("busy")
    entry(busy).call.pace.add(1, 0.001)
    for one in (idle, busy):
        available.update(one)
        one.is_taker = False
        available.update(one)
    assert available.find_idle() is None
    assert available.find_second() is None
    assert not available.fast


def test_the_current_unit_counts_as_begun_and_what_is_behind_it_does_not():
    busy = worker()
    first, second = entry(busy, chunk=4), entry(busy, chunk=4)
    first.done = 4
    assert busy.unbegun(first) == 8
    first.done = 8
    assert busy.unbegun(first) == 10
    assert busy.unbegun(second) == 0
    assert busy.has_unbegun
    busy.held.pop()
    assert not busy.has_unbegun


# Items that two workers hold.


def numbered(number, start, stop):
    return entry(WorkerState(f"w{number}", None, 0.0), start, stop, number=number)


def test_only_the_first_result_of_a_duplicated_item_is_new():
    duplicates = Duplicates()
    assert duplicates.add(numbered(1, 0, 10), 2, 10) == [(2, 10)]
    assert duplicates.settle(4, 6) == [(4, 6)]
    assert duplicates.settle(0, 10) == [(0, 4), (6, 10)]
    assert duplicates.settle(2, 10) == []


def test_what_another_worker_holds_is_no_orphan():
    duplicates = Duplicates()
    stuck, copy = numbered(1, 0, 10), numbered(2, 2, 5)
    duplicates.add(stuck, 2, 10)
    duplicates.dispatched(copy)
    duplicates.released(stuck)
    assert duplicates.orphans(0, 10, taint=True) == [(0, 2), (5, 10)]
    duplicates.released(copy)
    assert duplicates.orphans(2, 5, taint=True) == [(2, 5)]
    assert duplicates.split(0, 10) == ([(2, 5)], [(0, 2), (5, 10)])


def test_what_is_settled_is_no_orphan():
    duplicates = Duplicates()
    stuck = numbered(1, 0, 10)
    duplicates.add(stuck, 1, 10)
    duplicates.settle(3, 10)
    duplicates.released(stuck)
    assert duplicates.orphans(0, 10, taint=True) == [(0, 3)]


def test_entries_without_duplicated_items_are_not_kept():
    duplicates = Duplicates()
    duplicates.add(numbered(1, 0, 10), 5, 10)
    duplicates.dispatched(numbered(2, 20, 30))
    assert duplicates.orphans(20, 30, taint=False) == [(20, 30)]


def test_among_many_holders_those_of_the_items_are_found():
    duplicates = Duplicates()
    entries = [numbered(number, 10 * number, 10 * number + 10) for number in range(100)]
    for one in reversed(entries):
        duplicates.add(one, one.start, one.stop)
    for number in (40, 42):
        duplicates.released(entries[number])
    duplicates.released(entries[42])
    assert duplicates.orphans(395, 435, taint=False) == [(400, 410), (420, 430)]
    duplicates.dispatched(numbered(500, 0, 1000))
    assert duplicates.orphans(395, 435, taint=False) == []


# Workers that are stuck.


@pytest.fixture
def stragglers():
    return StragglerWatch(RevokePolicy())


def holder(name="w", mean=1e-4):
    worker = WorkerState(name, None, 0.0)
    entry(worker).call.pace.add(1, mean)
    return worker


def test_a_worker_is_due_when_its_unit_has_run_too_long(stragglers):
    worker = holder()
    stragglers.note(worker, 1)
    assert stragglers.next_deadline(1) == pytest.approx(0.05)
    assert list(stragglers.stuck_workers(0.049, 1)) == []
    assert list(stragglers.stuck_workers(0.05, 1)) == [worker]


def test_a_slow_call_gets_five_times_its_mean(stragglers):
    stragglers.note(holder(mean=0.1), 1)
    assert stragglers.next_deadline(1) == pytest.approx(0.5)


def test_among_many_workers_the_last_one_to_be_given_something_has_time_to_begin(stragglers):
    stragglers.note(holder(), 1000)
    assert stragglers.next_deadline(1) == pytest.approx(0.1)


def test_progress_puts_the_moment_off(stragglers):
    worker = holder()
    stragglers.note(worker, 1)
    worker.since = 0.04
    assert list(stragglers.stuck_workers(0.06, 1)) == []
    assert stragglers.next_deadline(1) == pytest.approx(0.09)


def test_nothing_is_revoked_while_no_worker_is_idle(stragglers):
    stragglers.note(holder(), 1)
    assert stragglers.next_deadline(0) is None
    assert list(stragglers.stuck_workers(9.0, 0)) == []


def test_an_answer_in_time_is_not_overdue(stragglers):
    first, second = holder("a").held[0], holder("b").held[0]
    stragglers.revoked(first, 1.0)
    stragglers.revoked(second, 1.0)
    stragglers.settle(first, RevokeState.ANSWERED)
    assert stragglers.unanswered == 1
    assert list(stragglers.overdue(1.05)) == []
    assert stragglers.next_deadline(0) == pytest.approx(1.1)
    assert list(stragglers.overdue(1.1)) == [second]
    assert second.revoke is RevokeState.OVERDUE
    assert stragglers.unanswered == 0
    assert stragglers.next_deadline(0) is None


def test_lost_workers_do_not_pile_up(stragglers):
    for number in range(1000):
        worker = holder(str(number))
        stragglers.note(worker, 1)
        worker.is_gone = True
    assert len(stragglers.heap) <= 70


# Ranges.

spans = st.tuples(st.integers(0, 30), st.integers(0, 30))


def items(ranges):
    return {item for start, stop in ranges for item in range(start, stop)}


@given(added=st.lists(spans), asked=spans)
def test_it_answers_as_a_set_of_ints_does(added, asked):
    ranges = RangeSet(added)
    expected = items(added)
    start, stop = asked
    assert items(ranges) == expected
    assert bool(ranges) == bool(expected)
    assert items(ranges.within(start, stop)) == expected & set(range(start, stop))
    assert items(ranges.outside(start, stop)) == set(range(start, stop)) - expected


@given(added=st.lists(spans))
def test_ranges_are_sorted_and_never_touch(added):
    flat = [bound for span in RangeSet(added) for bound in span]
    assert flat == sorted(set(flat))
