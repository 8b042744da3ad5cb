"""Arrays of 1 and 8 MB, and bytes of 1 MB, there and back: through a pair of queues, through a pipe, and by a pool."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
_WAYS = {"queue": "Queues", "pipe": "Pipe", "pool": "Pool"}
#: what is sent: its title, and into how many parts the payload of a round is cut
_KINDS = {
    "1mb": ("1 MB arrays", 8),
    "8mb": ("8 MB arrays", 1),
    "bytes": ("1 MB of bytes", 8),
}
METRICS = tuple(
    Metric(
        f"bandwidth-{way}-{kind}",
        f"{title}, {what} there and back",
        "MB/s",
        bars=(Bar(1.5),),
        more=True,
    )
    for way, title in _WAYS.items()
    for kind, (what, _) in _KINDS.items()
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

        def by_queue(items: list[Any]) -> list[Any]:
            for item in items:
                given.put(item)
            return [returned.get() for _ in items]

        def by_pipe(items: list[Any]) -> list[Any]:
            found = []
            for item in items:
                here.send(item)
                found.append(here.recv())
            return found

        ways: dict[str, Callable[[list[Any]], list[Any]]] = {
            "queue": by_queue,
            "pipe": by_pipe,
            "pool": lambda items: pool.map(tasks.noop, items),
        }
        # all are up
        for way in ways.values():
            way([np.zeros(1)])

        def once() -> dict[str, float]:
            values = {}
            for kind, (_, parts) in _KINDS.items():
                length, count = sizes.payload // parts // 8, sizes.payloads * parts
                # no two alike, so that nobody sends one for both
                items = [np.full(length, number) for number in range(count)]
                if kind == "bytes":
                    items = [one.tobytes() for one in items]
                for name, way in ways.items():
                    start = time.perf_counter()
                    found = way(items)
                    seconds = time.perf_counter() - start
                    # whole and in order, and an array is the receiver's own to change
                    assert [int(np.frombuffer(one, np.int64)[-1]) for one in found] == list(
                        range(count)
                    )
                    if kind != "bytes":
                        found[0][0] = -1
                    moved = 2 * 8 * length * count
                    values[f"bandwidth-{name}-{kind}"] = moved / 1e6 / seconds
            return values

        yield once
    here.send(None)
    given.put(None)
    for process in processes:
        process.join()
