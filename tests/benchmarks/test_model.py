"""How medians are held to their bars; nothing is timed."""

import pytest
from benchmarks.model import FLOOR, Bar, Metric, judge

FASTER = Metric("rate", "a rate", "items/s", bars=(Bar(1.0),), more=True)
SHORTER = Metric("time", "a time", "s", bars=(Bar(1.0), Bar(1.08, FLOOR)))


@pytest.mark.parametrize(
    "metric, ours, theirs, met",
    [
        (FASTER, 2.0, 1.0, True),
        (FASTER, 1.0, 2.0, False),
        (SHORTER, 1.0, 2.0, True),
        (SHORTER, 2.0, 1.0, False),
    ],
)
def test_more_is_better_for_rates_and_worse_for_times(metric, ours, theirs, met):
    verdict = judge(metric, {"fiber": [ours], "multiprocessing": [theirs]})[0]

    assert (verdict.ratio, verdict.met) == (ours / theirs, met)


def test_the_median_counts():
    (verdict,) = judge(FASTER, {"fiber": [9.0, 1.0, 2.0], "multiprocessing": [1.0, 1.0, 50.0]})

    assert (verdict.ours, verdict.baseline) == (2.0, 1.0)


def test_a_hundredth_is_within_what_can_be_told_apart():
    values = {"fiber": [1.004], "multiprocessing": [1.0]}

    assert judge(SHORTER, values)[0].met
    assert not judge(SHORTER, {**values, "fiber": [1.006]})[0].met


def test_each_bar_is_judged_against_its_own_contender():
    verdicts = judge(SHORTER, {"fiber": [1.2], "multiprocessing": [1.3], "floor": [1.0]})

    assert [one.met for one in verdicts] == [True, False]


def test_a_bar_against_nobody_is_about_the_value_itself():
    copies = Metric("copies", "copies", "copies", bars=(Bar(1.0, None),))

    (verdict,) = judge(copies, {"fiber": [2.0], "multiprocessing": [4.0]})

    assert (verdict.ratio, verdict.met) == (0.5, False)


def test_nothing_is_said_where_nothing_was_measured():
    assert judge(FASTER, {"fiber": []}) == []
    assert judge(FASTER, {"fiber": [1.0]})[0].met is None
