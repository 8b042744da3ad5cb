from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks.pending.batching import WINDOW, Pace, batch_units
from fiber._tasks.pending.policy import BatchPolicy

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
