"""Environments in processes of their own, asked all together at every step, as ``SubprocVecEnv`` does."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (
    Metric("environments", "8 CartPole environments", "steps/s", bars=(Bar(1.0),), more=True),
)
_COUNT = 8


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    ends, processes = [], []
    for number in range(_COUNT):
        here, there = mp.Pipe()
        process = mp.Process(target=tasks.act, args=(there, number))
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    # all are up
    for end in ends:
        end.recv()

    def once() -> dict[str, float]:
        rng = random.Random(1)
        start = time.perf_counter()
        for _ in range(sizes.steps):
            for end in ends:
                end.send(("step", rng.randrange(2)))
            for end in ends:
                end.recv()
        return {"environments": _COUNT * sizes.steps / (time.perf_counter() - start)}

    yield once
    for end in ends:
        end.send(("close", None))
    for process in processes:
        process.join()
