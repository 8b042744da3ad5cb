"""One task at a time: how long until its result is there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import Bar, Metric, Round, Sizes

CONTENDERS = None
METRICS = (
    Metric("apply-p50", "one apply(), p50", "µs", bars=(Bar(2.0),)),
    Metric("apply-p99", "one apply(), p99", "µs", bars=(Bar(1.0),)),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    count = max(10, sizes.applies // contenders.slowness(contender))
    with contenders.session(contender, sizes.workers) as pool:

        def once() -> dict[str, float]:
            took = []
            for number in range(count // 10 + count):
                start = time.perf_counter()
                pool.apply(tasks.noop, number)
                took.append(time.perf_counter() - start)
            # the first ones bring caches and clocks up
            took = sorted(took[count // 10 :])
            return {
                "apply-p50": 1e6 * took[len(took) // 2],
                "apply-p99": 1e6 * took[int(len(took) * 0.99)],
            }

        yield once
