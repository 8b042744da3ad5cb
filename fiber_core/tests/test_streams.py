"""Streams of outcomes: taken by waiting, by polling and by watching."""

from __future__ import annotations

import pytest

from fiber.results import Stream, UnorderedStream


def test_what_has_come_is_had_without_waiting():
    stream = Stream()
    assert stream.poll() is None
    stream.accept(0, [1, 2], {})
    assert stream.poll() == (1, None)
    assert stream.outcome(0) == (2, None)
    stream.done()
    with pytest.raises(StopIteration):
        stream.poll()


def test_an_outcome_may_be_an_error():
    stream, error = Stream(), ValueError("bad")
    stream.fail(0, 1, error)
    assert stream.poll() == (None, error)
    stream.fail(1, 2, error)
    with pytest.raises(ValueError, match="bad"):
        stream.take(0)


@pytest.mark.parametrize("end", ["done", "broken", "accept", "fail"])
def test_a_watcher_is_woken_once(end):
    noted, stream = [], UnorderedStream()
    stream.watch(lambda: noted.append(1))
    arguments = {"broken": [OSError()], "accept": [0, [1], {}], "fail": [0, 1, OSError()]}
    for _ in range(2):
        getattr(stream, end)(*arguments.get(end, []))
    assert noted == [1]


def test_a_late_watcher_is_woken_at_once():
    noted, stream = [], Stream()
    stream.accept(0, [1], {})
    stream.watch(lambda: noted.append(1))
    assert noted == [1]


def test_after_unwatch_nothing_is_woken():
    noted, stream = [], Stream()

    def wake():
        noted.append(1)

    stream.watch(wake)
    stream.unwatch(wake)
    stream.unwatch(wake)
    stream.done()
    assert noted == []


def test_results_in_order_wake_for_the_next_one_only():
    stream = Stream()
    noted = []
    stream.watch(lambda: noted.append(stream.poll()))
    # one that is not the next: whoever was told asks, finds nothing and waits again
    stream.accept(1, ["b"], {})
    stream.watch(lambda: noted.append(stream.poll()))
    stream.accept(0, ["a"], {})
    assert noted == [None, ("a", None)]
