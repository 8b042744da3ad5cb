"""Which workers are slow: those whose tasks take twice as long as the others'."""

import random
import statistics

import pytest

from fiber._base.slowness import slow_ones


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
