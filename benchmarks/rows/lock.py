"""A lock, and a value under its lock, used again and again by one process that did not make them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (
    Metric("lock", "Lock, taken and released", "1/s", bars=(Bar(1.0),), more=True),
    Metric("value", "Value += 1 under its lock", "1/s", bars=(Bar(1.0),), more=True),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    with (
        contenders.repeating(mp, tasks.take, mp.Lock()) as (locker,),
        contenders.repeating(mp, tasks.add, mp.Value("i", 0)) as (adder,),
    ):

        def once() -> dict[str, float]:
            found = {}
            for name, end in (("lock", locker), ("value", adder)):
                end.send(sizes.locks)
                found[name] = sizes.locks / end.recv()
            return found

        yield once
