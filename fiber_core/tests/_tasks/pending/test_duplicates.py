from __future__ import annotations

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.call_state import CallState, SharedCount
from fiber._tasks.pending.stragglers import Duplicates
from fiber._tasks.pending.worker_state import Entry, WorkerState


def entry(number, start, stop):
    call = CallState(1, chunk=1, retry=True, pace=Pace(0.01), total=SharedCount())
    return Entry(number, call, WorkerState(f"w{number}", None, 0.0), start, stop, is_suspect=False)


def test_only_the_first_result_of_a_duplicated_item_is_new():
    duplicates = Duplicates()
    assert duplicates.add(entry(1, 0, 10), 2, 10) == [(2, 10)]
    assert duplicates.settle(4, 6) == [(4, 6)]
    assert duplicates.settle(0, 10) == [(0, 4), (6, 10)]
    assert duplicates.settle(2, 10) == []


def test_what_another_worker_holds_is_no_orphan():
    duplicates = Duplicates()
    stuck, copy = entry(1, 0, 10), entry(2, 2, 5)
    duplicates.add(stuck, 2, 10)
    duplicates.dispatched(copy)
    duplicates.released(stuck)
    assert duplicates.orphans(0, 10, taint=True) == [(0, 2), (5, 10)]
    duplicates.released(copy)
    assert duplicates.orphans(2, 5, taint=True) == [(2, 5)]
    assert duplicates.split(0, 10) == ([(2, 5)], [(0, 2), (5, 10)])


def test_what_is_settled_is_no_orphan():
    duplicates = Duplicates()
    stuck = entry(1, 0, 10)
    duplicates.add(stuck, 1, 10)
    duplicates.settle(3, 10)
    duplicates.released(stuck)
    assert duplicates.orphans(0, 10, taint=True) == [(0, 3)]


def test_entries_without_duplicated_items_are_not_kept():
    duplicates = Duplicates()
    duplicates.add(entry(1, 0, 10), 5, 10)
    duplicates.dispatched(entry(2, 20, 30))
    assert duplicates.orphans(20, 30, taint=False) == [(20, 30)]


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
