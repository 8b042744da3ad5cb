"""A process that does nothing: started and joined, one after another, in a program that has others."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (Metric("process", "Process, start and join (forkserver)", "ms", bars=(Bar(1.0),)),)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(OURS)
    if contender == BASELINE:
        # as ours, which does not fork the program either
        mp = multiprocessing.get_context("forkserver")

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            process = mp.Process(target=tasks.noop, args=(None,))
            process.start()
            process.join()
        return (time.perf_counter() - start) / count

    # the program that forks them is up
    run(1)

    def once() -> dict[str, float]:
        return {"process": 1e3 * run(sizes.processes)}

    yield once
