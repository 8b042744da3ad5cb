"""Which of several workers are slow: the one rule of traces, ``fiber top`` and the dashboard."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from fiber._base import values

#: reports of a worker below which one cannot tell whether it was the worker or the task: of tasks whose times
#: vary like those between random events one worker in twenty would be named with so many, one in seven with three
_FEW = 8
#: workers, this one among them, below which there is nothing to compare with
_WORKERS = 3
#: so many times as long as the others' the tasks of a slow worker take
_FACTOR = 2.0
#: seconds of a difference that is worth a word
_SHORT = 1e-3

Name = TypeVar("Name", bound=Hashable)
Kind = TypeVar("Kind", bound=Hashable)


@values.frozen
class Lately:
    """How fast a worker is with tasks of one kind."""

    #: seconds of its median task; None after too few reports
    seconds: float | None = None
    #: seconds of the median worker among the others, where this one is slow; else None
    others: float | None = None


def compare(
    reports: Mapping[Name, Iterable[tuple[Kind, float]]],
) -> dict[Kind, dict[Name, Lately]]:
    """Compare workers with each other, for each kind of task; one long task makes no worker slow.

    Args:
        reports: of each worker the kind of each task, and its seconds.

    Returns:
        By kind the workers that have reported enough of it.
    """
    medians: dict[Kind, dict[Name, float]] = {}
    for name, told in reports.items():
        by_kind: dict[Kind, list[float]] = {}
        for kind, seconds in told:
            by_kind.setdefault(kind, []).append(seconds)
        for kind, times in by_kind.items():
            if len(times) >= _FEW:
                medians.setdefault(kind, {})[name] = sorted(times)[len(times) // 2]
    found: dict[Kind, dict[Name, Lately]] = {}
    for kind, of_kind in medians.items():
        slow = slow_ones(of_kind)
        found[kind] = {name: Lately(own, slow.get(name)) for name, own in of_kind.items()}
    return found


def lately(reports: Mapping[Name, Sequence[tuple[Kind, float]]]) -> dict[Name, Lately]:
    """How fast each worker was with the kind of task that it reported last.

    Args:
        reports: as those of :func:`compare`, oldest first.
    """
    compared = compare(reports)
    return {
        name: compared[told[-1][0]][name]
        for name, told in reports.items()
        if told and name in compared.get(told[-1][0], {})
    }


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
