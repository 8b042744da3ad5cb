"""A queue with two processes that write and two that read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (Metric("queue", "Queue, 2 writers, 2 readers", "items/s", bars=(Bar(1.0),), more=True),)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    half = sizes.queue_items // 2

    def once() -> dict[str, float]:
        items, ready, go, done = mp.Queue(), mp.SimpleQueue(), mp.SimpleQueue(), mp.SimpleQueue()
        processes = [
            *(mp.Process(target=tasks.write, args=(items, ready, go, half)) for _ in range(2)),
            *(mp.Process(target=tasks.read, args=(items, ready, go, done)) for _ in range(2)),
        ]
        for process in processes:
            process.start()
        for _ in processes:
            ready.get()
        start = time.perf_counter()
        for _ in processes:
            go.put(None)
        read = done.get() + done.get()
        seconds = time.perf_counter() - start
        for process in processes:
            process.join()
        assert read == 2 * half
        return {"queue": read / seconds}

    yield once
