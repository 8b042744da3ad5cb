"""A queue with two processes that write and two that read; one item at a time there and back through two queues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (
    Metric("queue", "Queue, 2 writers, 2 readers", "items/s", bars=(Bar(1.0),), more=True),
    Metric("queue-child", "Queues, an item to a child and back", "µs", bars=(Bar(1.5),)),
    Metric(
        "queue-children", "Queues, an item from child to child and back", "µs", bars=(Bar(1.5),)
    ),
)


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
        asking = mp.Process(target=tasks.ask, args=(*among, sizes.messages, done))
        asking.start()
        among_children = done.get()
        asking.join()
        return {
            "queue": read / seconds,
            "queue-child": 1e6 * tasks.ask(*to_child, sizes.messages),
            "queue-children": 1e6 * among_children,
        }

    to_child, among = [(mp.Queue(), mp.Queue()) for _ in range(2)]
    answering = [mp.Process(target=tasks.pass_on, args=pair) for pair in (to_child, among)]
    for process in answering:
        process.start()
    yield once
    for given, _ in (to_child, among):
        given.put(None)
    for process in answering:
        process.join()
