from __future__ import annotations

import pytest

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.call_state import CallState, SharedCount
from fiber._tasks.pending.worker_state import AvailableWorkers, Entry, RevokeState, WorkerState


def worker(name="w", slots=1):
    made = WorkerState(name, None, 0.0)
    made.credits = slots
    made.is_taker = True
    return made


def entry(holder, *, chunk=1, retry=True, suspect=False, stop=10):
    call = CallState(1, chunk=chunk, retry=retry, pace=Pace(0.01), total=SharedCount())
    held = Entry(1, call, holder, 0, stop, is_suspect=suspect)
    holder.held.append(held)
    return held


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
    held = entry(busy, retry=why != "at most once", suspect=why == "suspect")
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
