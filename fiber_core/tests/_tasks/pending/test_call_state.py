from __future__ import annotations

import pytest

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.call_state import CallState, SharedCount


@pytest.fixture
def total():
    return SharedCount()


@pytest.fixture
def make(total):
    return lambda chunk=1: CallState(1, chunk=chunk, retry=True, pace=Pace(0.01), total=total)


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
