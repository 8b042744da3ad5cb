"""Outcomes of several items travel together and arrive as they would have alone."""

import sys
from multiprocessing.pool import MaybeEncodingError

import numpy as np
import pytest

from fiber._tasks.outcomes import Outcomes, ReceivedOutcomes
from fiber._wire import codec, frames


class RefusesToBeRead:
    def __reduce__(self):
        return _refuse, ("read",)


class EndsItsReader:
    def __reduce__(self):
        return sys.exit, (3,)


def _refuse(what):
    raise ValueError(f"cannot be {what}")


def crossed(outcomes, first=0):
    """The outcomes as the pool has them."""
    stop = first + len(outcomes)
    # as transport hands it over, a body can be written to
    received = ReceivedOutcomes(memoryview(bytearray().join(outcomes.encode())), first, stop)
    return received.of(first, stop)


def gathered(*values):
    outcomes = Outcomes()
    for value in values:
        outcomes.add(value)
    return outcomes


@pytest.mark.parametrize(
    "values",
    [[1, "two", None, 3.0, b"4", True, (5, "six", None)], [[1], {2: 3}, {4}, (5, [6])], [object]],
    ids=["plain", "objects", "alone"],
)
def test_values_arrive_as_they_were(values):
    assert crossed(gathered(*values)) == (values, {})


def test_an_array_that_is_used_again_arrives_as_it_was_at_its_time():
    frame, outcomes = np.zeros(10_000), Outcomes()
    for number in range(3):
        frame += 1
        outcomes.add((number, frame))
        outcomes.pickle_mutable()
    values, _ = crossed(outcomes)
    assert [(number, float(array[0])) for number, array in values] == [(0, 1), (1, 2), (2, 3)]
    assert all(array.flags.writeable for _, array in values)


def test_equal_results_are_objects_of_their_own():
    shared = [1, 2]
    values, _ = crossed(gathered(shared, shared))
    assert values == [shared, shared]
    assert values[0] is not values[1]


class TestBadResults:
    """What cannot be pickled or read spoils no other, and is the error of its item."""

    BAD = pytest.mark.parametrize(
        "bad,text",
        [
            pytest.param((i for i in range(3)), "pickle", id="not pickled"),
            pytest.param(RefusesToBeRead(), "could not be read", id="raises when read"),
            pytest.param(EndsItsReader(), "could not be read", id="exits when read"),
        ],
    )

    @BAD
    def test_among_others(self, bad, text):
        values, errors = crossed(gathered([1], bad, [3]), first=10)
        assert [values[0], values[2]] == [[1], [3]]
        assert list(errors) == [11]
        assert isinstance(errors[11], MaybeEncodingError)
        assert text in str(errors[11])

    @BAD
    def test_alone(self, bad, text):
        values, errors = crossed(gathered(bad), first=4)
        assert values == [None]
        assert isinstance(errors[4], MaybeEncodingError)


def test_errors_and_skipped_items_are_listed_by_item():
    outcomes = gathered(1)
    outcomes.fail(KeyError("bad"))
    outcomes.skip()
    outcomes.add(4)
    values, errors = crossed(outcomes, first=20)
    assert values == [1, None, None, 4]
    assert isinstance(errors[21], KeyError)
    assert errors[22] is None
    assert "KeyError" in str(errors[21].__cause__)


def test_one_error_may_be_that_of_many_items():
    outcomes = Outcomes()
    outcomes.fail(KeyError("bad"), 1000)
    assert len(outcomes) == 1000
    _, errors = crossed(outcomes)
    assert all(isinstance(error, KeyError) for error in errors.values())


def test_a_part_of_what_came_can_be_looked_at():
    outcomes = gathered(0, 1, 2, 3)
    outcomes.fail(KeyError("bad"))
    received = ReceivedOutcomes(memoryview(frames.joined(outcomes.encode())), 100, 105)
    assert received.of(101, 103) == ([1, 2], {})
    values, errors = received.of(103, 105)
    assert values == [3, None]
    assert list(errors) == [104]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no pickle",
        frames.joined(codec.dumps(([1], {}, []))),
        frames.joined(codec.dumps("text")),
    ],
    ids=["nothing", "nonsense", "too few", "another thing"],
)
def test_nonsense_is_the_error_of_each_item_that_is_asked_for(body):
    # what a hostile worker announces costs no memory
    received = ReceivedOutcomes(memoryview(body), 0, 2**62)
    values, errors = received.of(5, 8)
    assert values == [None] * 3
    assert [type(errors[n]) for n in (5, 6, 7)] == [MaybeEncodingError] * 3


def test_large_buffers_of_a_lone_result_are_not_copied_into_its_pickle():
    array = np.zeros(100_000)
    segments = gathered(array).encode()
    assert any(len(segment) == array.nbytes for segment in segments)
