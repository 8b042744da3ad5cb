"""Items and arrays there and back over TLS, as between hosts; ``multiprocessing`` knows pipes alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import numpy as np

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (
    Metric("tls items", "10 KB items there and back over TLS", "MB/s", more=True),
    Metric("tls arrays", "8 MB arrays there and back over TLS", "MB/s", more=True),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    # of this program alone, before it has a runtime
    os.environ["FIBER_LOCAL_TRANSPORT"] = "tls"
    items = [os.urandom(sizes.item) for _ in range(sizes.items)]
    arrays = [np.full(sizes.payload // 8, float(number)) for number in range(sizes.payloads)]
    with contenders.session(contender, sizes.workers) as pool:

        def rate(sent: list[bytes] | list[np.ndarray], size: int) -> float:
            start = time.perf_counter()
            found = pool.map(tasks.noop, sent)
            seconds = time.perf_counter() - start
            assert all(np.array_equal(one, other) for one, other in zip(found, sent, strict=True))
            return 2 * len(sent) * size / 1e6 / seconds

        def once() -> dict[str, float]:
            return {
                "tls items": rate(items, sizes.item),
                "tls arrays": rate(arrays, sizes.payload),
            }

        yield once
