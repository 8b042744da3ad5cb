"""Which of several workers are slow: the one rule of traces, ``fiber top`` and the dashboard."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from typing import TypeVar

#: reports of a worker below which one cannot tell whether it was the worker or the task: of tasks whose times
#: vary like those between random events one worker in twenty would be named with so many, one in seven with three
FEW = 8
#: workers, this one among them, below which there is nothing to compare with
_WORKERS = 3
#: so many times as long as the others' the tasks of a slow worker take
_FACTOR = 2.0
#: seconds of a difference that is worth a word
_SHORT = 1e-3

Name = TypeVar("Name", bound=Hashable)


def slow_ones(medians: Mapping[Name, float]) -> dict[Name, float]:
    """Return the slow workers, each with the median of the other workers' medians.

    Args:
        medians: seconds of the median task of each worker, all of one function.
    """
    if len(medians) < _WORKERS:
        return {}
    ordered = sorted(medians.values())
    found = {}
    for name, own in medians.items():
        others = _median_without(ordered, bisect_left(ordered, own))
        if own >= _FACTOR * others > 0 and own - others > _SHORT:
            found[name] = others
    return found


def _median_without(ordered: list[float], gone: int) -> float:
    """Median of sorted values without the one at that place; no copy, for thousands of workers."""

    def at(place: int) -> float:
        return ordered[place if place < gone else place + 1]

    middle, odd = divmod(len(ordered) - 1, 2)
    return at(middle) if odd else (at(middle - 1) + at(middle)) / 2
