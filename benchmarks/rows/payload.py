"""Big arguments that come back as results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import Bar, Metric, Round, Sizes

CONTENDERS = None
METRICS = (Metric("payload", "8 MB bytes there and back", "MB/s", bars=(Bar(1.0),), more=True),)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    # no two alike, so that nobody sends one for both
    items = [bytes([number]) * sizes.payload for number in range(sizes.payloads)]
    with contenders.session(contender, sizes.workers) as pool:

        def once() -> dict[str, float]:
            start = time.perf_counter()
            found = pool.map(tasks.noop, items)
            seconds = time.perf_counter() - start
            assert found == items
            return {"payload": 2 * len(items) * sizes.payload / 1e6 / seconds}

        yield once
