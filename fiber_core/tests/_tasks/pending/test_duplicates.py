from __future__ import annotations

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.calls import Call, Tally
from fiber._tasks.pending.stragglers import Contest
from fiber._tasks.pending.workers import Entry, Worker


def entry(number, start, stop):
    call = Call(1, chunk=1, retry=True, pace=Pace(0.01), total=Tally())
    return Entry(number, call, Worker(f"w{number}", None, 0.0), start, stop, is_suspect=False)


def test_only_the_first_result_of_a_contested_item_is_new():
    contest = Contest()
    assert contest.open(entry(1, 0, 10), 2, 10) == [(2, 10)]
    assert contest.settle(4, 6) == [(4, 6)]
    assert contest.settle(0, 10) == [(0, 4), (6, 10)]
    assert contest.settle(2, 10) == []


def test_what_another_worker_holds_is_no_orphan():
    contest = Contest()
    stuck, copy = entry(1, 0, 10), entry(2, 2, 5)
    contest.open(stuck, 2, 10)
    contest.given(copy)
    contest.gone(stuck)
    assert contest.orphans(0, 10, taint=True) == [(0, 2), (5, 10)]
    contest.gone(copy)
    assert contest.orphans(2, 5, taint=True) == [(2, 5)]
    assert contest.split(0, 10) == ([(2, 5)], [(0, 2), (5, 10)])


def test_what_is_settled_is_no_orphan():
    contest = Contest()
    stuck = entry(1, 0, 10)
    contest.open(stuck, 1, 10)
    contest.settle(3, 10)
    contest.gone(stuck)
    assert contest.orphans(0, 10, taint=True) == [(0, 3)]


def test_entries_beside_the_contest_are_not_kept():
    contest = Contest()
    contest.open(entry(1, 0, 10), 5, 10)
    contest.given(entry(2, 20, 30))
    assert contest.orphans(20, 30, taint=False) == [(20, 30)]


def test_among_many_holders_those_of_the_items_are_found():
    contest = Contest()
    entries = [entry(number, 10 * number, 10 * number + 10) for number in range(100)]
    for one in reversed(entries):
        contest.open(one, one.start, one.stop)
    for number in (40, 42):
        contest.gone(entries[number])
    contest.gone(entries[42])
    assert contest.orphans(395, 435, taint=False) == [(400, 410), (420, 430)]
    contest.given(entry(500, 0, 1000))
    assert contest.orphans(395, 435, taint=False) == []
