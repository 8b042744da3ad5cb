"""A pipe, and two simple queues, to a process that sends back what it gets: small messages, and large ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes
from benchmarks.round_trips import LARGE, over_pipe, seconds

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (
    Metric("pipe", "Pipe, a small message there and back", "µs", bars=(Bar(1.2),)),
    Metric("simple-queue", "SimpleQueue, a small item there and back", "µs", bars=(Bar(1.2),)),
    Metric("pipe-bytes", "Pipe, 4 MB there and back", "MB/s", bars=(Bar(2.0),), more=True),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    given, returned = mp.SimpleQueue(), mp.SimpleQueue()
    process = mp.Process(target=tasks.pass_on, args=(given, returned))
    process.start()

    def by_queue(item: Any) -> Any:
        given.put(item)
        return returned.get()

    with over_pipe(mp) as by_pipe:
        large = bytes(LARGE)
        # the processes are up
        by_pipe(large)
        by_queue(1)

        def once() -> dict[str, float]:
            small = seconds(by_pipe, {"step": 1}, sizes.messages)
            item = seconds(by_queue, {"step": 1}, sizes.messages)
            took = seconds(by_pipe, large, max(1, sizes.messages // 100))
            return {
                "pipe": 1e6 * small,
                "simple-queue": 1e6 * item,
                "pipe-bytes": 2 * LARGE / took / 1e6,
            }

        yield once
    given.put(None)
    process.join()
