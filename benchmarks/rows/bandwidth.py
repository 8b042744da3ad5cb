"""Arrays of 1 and 8 MB there and back: through a pair of queues, through a pipe, and by a pool."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
_WAYS = {"queue": "Queues", "pipe": "Pipe", "pool": "Pool"}
_PARTS = {"1mb": 8, "8mb": 1}
METRICS = tuple(
    Metric(
        f"bandwidth-{way}-{size}",
        f"{title}, {size.replace('mb', ' MB')} arrays there and back",
        "MB/s",
        bars=(Bar(1.5),),
        more=True,
    )
    for way, title in _WAYS.items()
    for size in _PARTS
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    import numpy as np

    mp = contenders.module(contender)
    here, there = mp.Pipe()
    given, returned = mp.Queue(), mp.Queue()
    processes = [
        mp.Process(target=tasks.echo, args=(there,)),
        mp.Process(target=tasks.pass_on, args=(given, returned)),
    ]
    for process in processes:
        process.start()
    there.close()
    with contenders.session(contender, sizes.workers) as pool:

        def by_queue(arrays: list[Any]) -> list[Any]:
            for array in arrays:
                given.put(array)
            return [returned.get() for _ in arrays]

        def by_pipe(arrays: list[Any]) -> list[Any]:
            found = []
            for array in arrays:
                here.send(array)
                found.append(here.recv())
            return found

        ways: dict[str, Callable[[list[Any]], list[Any]]] = {
            "queue": by_queue,
            "pipe": by_pipe,
            "pool": lambda arrays: pool.map(tasks.noop, arrays),
        }
        # all are up
        for way in ways.values():
            way([np.zeros(1)])

        def once() -> dict[str, float]:
            values = {}
            for size, parts in _PARTS.items():
                length, count = sizes.payload // parts // 8, sizes.payloads * parts
                # no two alike, so that nobody sends one for both
                arrays = [np.full(length, number) for number in range(count)]
                for name, way in ways.items():
                    start = time.perf_counter()
                    found = way(arrays)
                    seconds = time.perf_counter() - start
                    # whole and in order, and the receiver's own to change
                    assert [int(one[-1]) for one in found] == list(range(count))
                    found[0][0] = -1
                    moved = 2 * sum(one.nbytes for one in found)
                    values[f"bandwidth-{name}-{size}"] = moved / 1e6 / seconds
            return values

        yield once
    here.send(None)
    given.put(None)
    for process in processes:
        process.join()
