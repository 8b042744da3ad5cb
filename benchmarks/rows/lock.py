"""A lock, a value under its lock, a semaphore and a condition, used again and again by one or by two processes that did not make them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (
    Metric("lock", "Lock, taken and released", "1/s", bars=(Bar(1.0),), more=True),
    Metric("value", "Value += 1 under its lock", "1/s", bars=(Bar(1.0),), more=True),
    Metric("semaphore", "Semaphore, taken and released", "1/s", bars=(Bar(1.0),), more=True),
    Metric("notify", "Condition, nobody notified", "1/s", bars=(Bar(1.0),), more=True),
    Metric("two-lock", "Lock, by two processes", "1/s", bars=(Bar(0.5),), more=True),
    Metric("two-semaphore", "Semaphore of 2, by two processes", "1/s", bars=(Bar(0.5),), more=True),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    with contextlib.ExitStack() as stack:
        ends = {
            name: stack.enter_context(contenders.repeating(mp, *what, processes=count))
            for name, count, what in (
                ("lock", 1, (tasks.take, mp.Lock())),
                ("value", 1, (tasks.add, mp.Value("i", 0))),
                ("semaphore", 1, (tasks.take, mp.Semaphore(2))),
                ("notify", 1, (tasks.notify, mp.Condition())),
                ("two-lock", 2, (tasks.take, mp.Lock())),
                ("two-semaphore", 2, (tasks.take, mp.Semaphore(2))),
            )
        }

        def once() -> dict[str, float]:
            found = {}
            for name, users in ends.items():
                # long enough for both to be at it at once
                count = sizes.locks * len(users) ** 2
                for end in users:
                    end.send(count)
                found[name] = len(users) * count / max([end.recv() for end in users])
            return found

        yield once
