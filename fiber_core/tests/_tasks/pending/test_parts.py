"""Parts of a pending table that its histories do not show: sizes, order, limits and ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks.pending.events import BatchPolicy, RevokePolicy
from fiber._tasks.pending.state import (
    WINDOW,
    CallState,
    Duplicates,
    Entry,
    Pace,
    RangeSet,
    SharedCount,
    StragglerWatch,
    WorkerState,
    batch_units,
)
from fiber._tasks.pending.table import KINDS, Ledger


def call_state():
    return CallState(1, chunk=1, retry=True, pace=Pace(0.01), total=SharedCount())


def entry(number=1, start=0, stop=10):
    """An entry that a worker of its own holds."""
    holder = WorkerState(f"w{number}", None, 0.0)
    holder.held.append(Entry(number, call_state(), holder, start, stop, is_suspect=False))
    return holder.held[0]


@pytest.mark.parametrize(
    "mean, limits, units",
    [
        # an entry aims at the target
        (1.0, {}, 1),
        (0.0015, {}, 1),
        (0.0005, {}, 3),
        (1e-5, {}, 150),
        (1e-9, {}, 4096),
        (0.0, {}, 4096),
        # and shrinks as the queue runs dry
        (1e-6, {"queued": 8000, "workers": 4}, 1000),
        (1e-6, {"queued": 80, "workers": 4}, 10),
        (1e-6, {"queued": 9, "workers": 4}, 2),
        (1e-6, {"queued": 8, "workers": 4}, 1),
        # but lasts as long as giving every worker one
        (1e-6, {"queued": 80, "workers": 4, "cost": 0.00005}, 200),
        (1e-6, {"workers": 4, "cost": 0.00005}, 1500),
        (1e-6, {"queued": 80, "workers": 1000, "cost": 0.00005}, 4096),
        (1e-3, {"workers": 1000, "cost": 0.00005}, 50),
        (1e-3, {"queued": 9, "workers": 4, "cost": 0.00005}, 1),
        (0.0, {"queued": 8, "workers": 4, "cost": 0.00005}, 4096),
        # and has no more bytes or units than it may
        (1e-6, {"bytes_per_unit": 2**18}, 4),
        (1e-6, {"bytes_per_unit": 2**30}, 1),
        (1e-6, {"units_left": 7}, 7),
    ],
)
def test_the_size_of_an_entry(mean, limits, units):
    given = {"queued": 10**6, "workers": 1, "units_left": None, "bytes_per_unit": 0.0, **limits}
    policy = BatchPolicy(target=0.0015, cost=given.pop("cost", 0.0))
    assert batch_units(policy, mean, **given) == units


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


def test_the_kinds_that_were_not_used_for_long_are_forgotten():
    ledger = Ledger(StragglerWatch(RevokePolicy()), 0.01)
    kept, old = ledger.pace("kept"), ledger.pace("old")
    for number in range(KINDS - 1):
        ledger.pace(str(number))
        assert ledger.pace("kept") is kept
    assert ledger.pace("old") is not old


def test_among_many_holders_those_of_the_items_are_found():
    duplicates = Duplicates()
    entries = [entry(number, 10 * number, 10 * number + 10) for number in range(100)]
    for one in reversed(entries):
        duplicates.add(one, one.start, one.stop)
    for number in (40, 42):
        duplicates.released(entries[number])
    duplicates.released(entries[42])
    assert duplicates.orphans(395, 435, taint=False) == [(400, 410), (420, 430)]
    duplicates.dispatched(entry(500, 0, 1000))
    assert duplicates.orphans(395, 435, taint=False) == []


@pytest.mark.parametrize(
    "mean, workers, seconds",
    [(1e-4, 1, 0.05), (0.1, 1, 0.5), (1e-4, 1000, 0.1)],
    ids=["short units", "five times the mean", "each of many workers is to have begun"],
)
def test_how_long_a_unit_may_run_before_what_is_behind_it_is_revoked(mean, workers, seconds):
    stragglers = StragglerWatch(RevokePolicy())
    held = entry()
    held.call.pace.add(1, mean)
    stragglers.note(held.worker, workers)
    assert stragglers.next_deadline(1) == pytest.approx(seconds)


def test_lost_workers_do_not_pile_up():
    stragglers = StragglerWatch(RevokePolicy())
    for number in range(1000):
        worker = entry(number).worker
        stragglers.note(worker, 1)
        worker.is_gone = True
    assert len(stragglers.heap) <= 70


spans = st.tuples(st.integers(0, 30), st.integers(0, 30))


def items(ranges):
    return {item for start, stop in ranges for item in range(start, stop)}


@given(added=st.lists(spans), asked=spans)
def test_it_answers_as_a_set_of_ints_does(added, asked):
    ranges = RangeSet(added)
    expected = items(added)
    start, stop = asked
    assert items(ranges) == expected
    flat = [bound for span in ranges for bound in span]
    assert flat == sorted(set(flat)), "they do not touch"
    assert bool(ranges) == bool(expected)
    assert items(ranges.within(start, stop)) == expected & set(range(start, stop))
    assert items(ranges.outside(start, stop)) == set(range(start, stop)) - expected
