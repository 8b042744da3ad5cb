"""One assignment to a manager's dict, by the process that has the manager and by a child of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (
    Metric("manager", "Manager's dict, one assignment", "µs", bars=(Bar(1.2),)),
    Metric("manager-child", "the same, by a child", "µs", bars=(Bar(1.2),)),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    with mp.Manager() as manager:
        mapping = manager.dict()
        with contenders.repeating(mp, tasks.assign, mapping) as (child,):

            def once() -> dict[str, float]:
                start = time.perf_counter()
                for _ in range(sizes.calls):
                    tasks.assign(mapping)
                parents = time.perf_counter() - start
                child.send(sizes.calls)
                return {
                    "manager": 1e6 * parents / sizes.calls,
                    "manager-child": 1e6 * child.recv() / sizes.calls,
                }

            yield once
