"""Which workers are slow: those whose tasks take twice as long as the others'."""

import random
import statistics

import pytest

from fiber._base.slowness import Lately, compare, lately, slow_ones


@pytest.mark.parametrize(
    "seconds, expected",
    [
        ([1.0, 1.1, 4.4, 1.2], {2: 1.1}),
        ([1.0, 1.0, 2.0], {2: 1.0}),
        # too few to compare with, too short to matter, nothing to be so many times of
        ([1.0, 9.0], {}),
        ([0.0001, 0.0001, 0.0009], {}),
        ([0.0, 0.0, 5.0], {}),
    ],
)
def test_a_worker_is_slow_at_twice_the_median_of_the_others(seconds, expected):
    assert slow_ones(dict(enumerate(seconds))) == expected


def test_the_median_is_that_of_the_others_alone():
    chance = random.Random(1)
    seconds = {number: chance.choice([1.0, 2.0, 3.0, 7.0, 9.0]) for number in range(12)}

    found = slow_ones(seconds)

    assert found
    for name, others in found.items():
        rest = [value for other, value in seconds.items() if other != name]
        assert others == statistics.median(rest)


def test_workers_are_compared_by_kind_of_task_once_each_has_eight_reports():
    reports = {number: [("a", 1.0)] * 8 + [("b", 1.0)] * 2 for number in range(3)}
    # one long task is none of the worker's affair
    reports[0] = [("a", 60.0), *[("a", 1.0)] * 8]
    reports["slow"] = [*[("b", 0.1)] * 7, *[("a", 3.0)] * 8]

    usual, slow = Lately(1), Lately(3, 1)
    assert compare(reports) == {"a": {0: usual, 1: usual, 2: usual, "slow": slow}}
    # of the last kind of the others there are too few
    assert lately(reports) == {0: usual, "slow": slow}
