"""What is measured: metrics and the bars that they are held to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

#: runs one round and returns the value of each metric by name
Round = Callable[[], Mapping[str, float]]

OURS = "fiber"
BASELINE = "multiprocessing"
FLOOR = "floor"
#: in which the bars are judged, whatever else is installed
JUDGED = (OURS, BASELINE, FLOOR)


class Bar(NamedTuple):
    """A limit of our value's ratio to another contender's, or of the value itself."""

    limit: float
    #: whose value ours is divided by; None for nobody's
    against: str | None = BASELINE


class Metric(NamedTuple):
    """One number that a row measures."""

    name: str
    title: str
    unit: str
    bars: tuple[Bar, ...] = ()
    #: True where more is better
    more: bool = False


class Sizes(NamedTuple):
    """How much is done in a round."""

    #: workers of rows that ask for no number of their own
    workers: int = 2
    #: seconds that the overhead row's tasks take in all, on ideal workers
    overhead: float = 1.0
    noops: int = 50_000
    applies: int = 2_000
    flood: int = 10_000
    payload: int = 8_000_000
    payloads: int = 16
    items: int = 10_000
    item: int = 10_000
    closure: int = 64_000_000
    closure_tasks: int = 20
    queue_items: int = 100_000
    #: messages there and back through a pipe; of large ones a hundredth
    messages: int = 10_000
    locks: int = 10_000
    #: of all environments
    steps: int = 2_000
    meetings: int = 2_000
    calls: int = 5_000
    processes: int = 50
    #: workers of the larger start
    start: int = 100
    #: workers of the two pools that are compared
    few: int = 64
    many: int = 1_024
    scale_tasks: int = 100_000
    #: tasks of the longest map and stream
    growth: int = 1_000_000
    #: silent connections, handshakes a second, and tasks meanwhile
    strangers: int = 1_000
    handshakes: int = 100
    stranger_tasks: int = 10_000


#: so little that only the code is tested
TINY = Sizes(
    overhead=0.02,
    noops=50,
    applies=20,
    flood=50,
    payload=100_000,
    payloads=2,
    items=20,
    closure=100_000,
    closure_tasks=10,
    queue_items=200,
    messages=20,
    locks=20,
    steps=5,
    meetings=5,
    calls=20,
    processes=2,
    start=3,
    few=1,
    many=3,
    scale_tasks=100,
    growth=1_000,
    strangers=5,
    handshakes=10,
    stranger_tasks=20,
)


class Row(Protocol):
    """What a module of ``benchmarks.rows`` has."""

    METRICS: Sequence[Metric]
    #: names of contenders that can do it; None for all that have a pool
    CONTENDERS: Sequence[str] | None

    def prepare(self, contender: str, sizes: Sizes) -> AbstractContextManager[Round]:
        """Set up what a round needs, and take it down."""


class Verdict(NamedTuple):
    """A metric against one of its bars."""

    metric: Metric
    bar: Bar | None
    ours: float
    baseline: float | None
    #: our value divided by the one that the bar is about
    ratio: float | None
    met: bool | None


#: values of each round, by metric and then by contender
Values = Mapping[str, Mapping[str, Sequence[float]]]


def judge(metric: Metric, values: Mapping[str, Sequence[float]]) -> list[Verdict]:
    """Hold a metric's medians to its bars; ratios count to a hundredth."""
    medians = {name: statistics.median(rounds) for name, rounds in values.items() if rounds}
    if OURS not in medians:
        return []
    ours, baseline = medians[OURS], medians.get(BASELINE)
    verdicts = []
    for bar in metric.bars or (None,):
        other = medians.get(BASELINE if bar is None or bar.against is None else bar.against)
        ratio = ours / other if other else None
        judged = ours if bar is not None and bar.against is None else ratio
        met = None
        if bar is not None and judged is not None:
            rounded = round(judged, 2)
            met = rounded >= bar.limit if metric.more else rounded <= bar.limit
        verdicts.append(Verdict(metric, bar, ours, baseline, ratio, met))
    return verdicts
