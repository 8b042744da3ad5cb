"""A pipe, and two simple queues, to a process that sends back what it gets: small messages, and large ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (
    Metric("pipe", "Pipe, a small message there and back", "µs", bars=(Bar(1.2),)),
    Metric("simple-queue", "SimpleQueue, a small item there and back", "µs", bars=(Bar(1.2),)),
    Metric("pipe-bytes", "Pipe, 4 MB there and back", "MB/s", bars=(Bar(2.0),), more=True),
)
_LARGE = 4_000_000


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    here, there = mp.Pipe()
    given, returned = mp.SimpleQueue(), mp.SimpleQueue()
    processes = [
        mp.Process(target=tasks.echo, args=(there,)),
        mp.Process(target=tasks.pass_on, args=(given, returned)),
    ]
    for process in processes:
        process.start()
    there.close()
    large = bytes(_LARGE)

    def seconds(message: Any, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            here.send(message)
            here.recv()
        return (time.perf_counter() - start) / count

    def by_queue(item: Any, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            given.put(item)
            returned.get()
        return (time.perf_counter() - start) / count

    # the processes are up
    seconds(large, 1)
    by_queue(1, 1)

    def once() -> dict[str, float]:
        return {
            "pipe": 1e6 * seconds({"step": 1}, sizes.messages),
            "simple-queue": 1e6 * by_queue({"step": 1}, sizes.messages),
            "pipe-bytes": 2 * _LARGE / seconds(large, max(1, sizes.messages // 100)) / 1e6,
        }

    yield once
    here.send(None)
    given.put(None)
    for process in processes:
        process.join()
