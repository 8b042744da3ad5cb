"""One master with few workers and with very many, all of them real processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, memory, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (
    Metric("scale-few", "64 workers: no-op tasks", "tasks/s", more=True),
    Metric(
        "scale-many",
        "1,024 workers: no-op tasks",
        "tasks/s",
        bars=(Bar(50_000.0, None),),
        more=True,
    ),
    Metric("scale-kept", "1,024 workers' rate by 64's", "x", bars=(Bar(1.0, None),), more=True),
    Metric("scale-memory", "1,024 workers: master's memory each", "KB", bars=(Bar(200.0, None),)),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    memory.prepare_for(contender, sizes.few + sizes.many)
    with contenders.session(contender, sizes.few) as few:
        before = memory.resident()
        with contenders.session(contender, sizes.many) as many:
            each = (memory.resident() - before) / sizes.many

            def rate(pool: contenders.Session) -> float:
                start = time.perf_counter()
                found = pool.map(tasks.noop, range(sizes.scale_tasks))
                seconds = time.perf_counter() - start
                assert len(found) == sizes.scale_tasks
                return sizes.scale_tasks / seconds

            def once() -> dict[str, float]:
                with_few, with_many = rate(few), rate(many)
                return {
                    "scale-few": with_few,
                    "scale-many": with_many,
                    "scale-kept": with_many / with_few,
                    "scale-memory": max(each, 0.1),
                }

            yield once
