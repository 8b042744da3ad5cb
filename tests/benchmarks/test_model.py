"""How medians are held to their bars; nothing is timed."""

import pytest
from benchmarks.measure import environment
from benchmarks.model import FLOOR, Bar, Metric, judge

FASTER = Metric("rate", "a rate", "items/s", bars=(Bar(1.0),), more=True)
COPIES = Metric("copies", "copies", "copies", bars=(Bar(1.0, None),))
SHORTER = Metric("time", "a time", "s", bars=(Bar(1.0), Bar(1.08, FLOOR)))


@pytest.mark.parametrize(
    "metric, values, ratio, met",
    [
        # more is better for rates and worse for times
        (FASTER, {"fiber": [2.0], "multiprocessing": [1.0]}, 2.0, [True]),
        (FASTER, {"fiber": [1.0], "multiprocessing": [2.0]}, 0.5, [False]),
        (SHORTER, {"fiber": [1.0], "multiprocessing": [2.0]}, 0.5, [True, None]),
        (SHORTER, {"fiber": [2.0], "multiprocessing": [1.0]}, 2.0, [False, None]),
        # the median counts
        (FASTER, {"fiber": [9.0, 1.0, 2.0], "multiprocessing": [1.0, 1.0, 50.0]}, 2.0, [True]),
        # a hundredth is within what can be told apart
        (SHORTER, {"fiber": [1.004], "multiprocessing": [1.0]}, 1.004, [True, None]),
        (SHORTER, {"fiber": [1.006], "multiprocessing": [1.0]}, 1.006, [False, None]),
        # each bar is judged against its own contender, or against nobody
        (SHORTER, {"fiber": [1.2], "multiprocessing": [2.4], "floor": [1.0]}, 0.5, [True, False]),
        (COPIES, {"fiber": [2.0], "multiprocessing": [4.0]}, 0.5, [False]),
        # nothing is said where nothing was measured
        (FASTER, {"fiber": [1.0]}, None, [None]),
        (FASTER, {"fiber": []}, None, []),
    ],
)
def test_a_median_is_held_to_its_bars(metric, values, ratio, met):
    verdicts = judge(metric, values)

    assert [one.met for one in verdicts] == met
    assert ratio is None or verdicts[0].ratio == ratio


def test_what_is_measured_does_not_compile_its_modules_each_time(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    assert "PYTHONDONTWRITEBYTECODE" not in environment()
