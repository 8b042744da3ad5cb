"""Many tasks given one by one, as fast as they are taken, before any result is asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (
    Metric("flood", "apply_async in a flood", "tasks/s", bars=(Bar(2.0),), more=True),
    Metric(
        "flood-turns",
        "apply_async of two functions in turns",
        "tasks/s",
        bars=(Bar(1.0),),
        more=True,
    ),
    Metric("flood-submit", "Executor.submit in a flood", "tasks/s", bars=(Bar(2.0),), more=True),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    module, numbers = contenders.module(contender), range(sizes.flood)
    turns = tasks.noop, tasks.noop_too

    def rate(give: Callable[[int], Any], take: Callable[[Any], int]) -> float:
        start = time.perf_counter()
        given = [give(number) for number in numbers]
        taken: Sequence[int] = [take(one) for one in given]
        seconds = time.perf_counter() - start
        assert taken == list(numbers)
        return sizes.flood / seconds

    with (
        module.Pool(sizes.workers) as pool,
        _executor(module, contender, sizes.workers) as executor,
    ):
        # all workers are up
        pool.map(tasks.noop, range(100), 1)
        pool.map(tasks.noop_too, range(100), 1)
        list(executor.map(tasks.noop, range(100)))

        def once() -> dict[str, float]:
            return {
                "flood": rate(
                    lambda number: pool.apply_async(tasks.noop, (number,)), lambda one: one.get()
                ),
                "flood-turns": rate(
                    lambda number: pool.apply_async(turns[number % 2], (number,)),
                    lambda one: one.get(),
                ),
                "flood-submit": rate(
                    lambda number: executor.submit(tasks.noop, number), lambda one: one.result()
                ),
            }

        yield once


def _executor(module: Any, contender: str, workers: int) -> Executor:
    if contender == OURS:
        executor: Executor = module.Executor(workers)
        return executor
    return ProcessPoolExecutor(workers, mp_context=module)
