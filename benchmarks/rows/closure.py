"""A function that closes over a big array: how often it arrives in a worker, and how long it takes.

``multiprocessing`` cannot send closures and gets a partial function that holds the same array.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, Bar, Metric, Round, Sizes

WORKERS = 5
CONTENDERS = None
METRICS = (
    Metric(
        "closure-copies",
        f"64 MB closure, {WORKERS} workers: copies each",
        "copies",
        bars=(Bar(1.0, None),),
    ),
    Metric("closure-time", f"64 MB closure, {WORKERS} workers: one map", "s"),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    import numpy as np

    array = np.ones(sizes.closure // 8)
    with contenders.session(contender, WORKERS) as pool:
        arrived: dict[int, int] = {}

        def once() -> dict[str, float]:
            function = _function(contender, tasks.Cargo(array))
            start = time.perf_counter()
            found = pool.map(function, range(sizes.closure_tasks))
            seconds = time.perf_counter() - start
            assert [last for _, _, last in found] == [1 + n for n in range(sizes.closure_tasks)]
            before = dict(arrived)
            for pid, count, _ in found:
                arrived[pid] = max(arrived.get(pid, 0), count)
            copies = float(max(count - before.get(pid, 0) for pid, count in arrived.items()))
            return {"closure-copies": copies, "closure-time": seconds}

        yield once


def _function(contender: str, cargo: tasks.Cargo) -> Callable[[int], Any]:
    if contender == BASELINE:
        return functools.partial(tasks.weigh, cargo)

    def weigh(item: int) -> Any:
        return tasks.weigh(cargo, item)

    return weigh
