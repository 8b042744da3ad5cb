"""Tasks that do nothing, each sent on its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import Bar, Metric, Round, Sizes

CONTENDERS = None
METRICS = (Metric("noop", "no-op tasks, chunksize=1", "tasks/s", bars=(Bar(5.0),), more=True),)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    count = sizes.noops // contenders.slowness(contender)
    with contenders.session(contender, sizes.workers) as pool:

        def once() -> dict[str, float]:
            start = time.perf_counter()
            found = pool.map(tasks.noop, range(count))
            seconds = time.perf_counter() - start
            assert found == list(range(count))
            return {"noop": count / seconds}

        yield once
