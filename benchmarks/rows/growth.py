"""What a task costs the master, and what a stream of them holds, as they become more and more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, memory, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE)
METRICS = (
    Metric("cpu-1e3", "master's CPU a task, 10³ tasks", "µs"),
    Metric("cpu-1e6", "master's CPU a task, 10⁶ tasks", "µs"),
    Metric("cpu-growth", "master's CPU a task, 10⁶ by 10⁵", "x", bars=(Bar(1.2, None),)),
    Metric("stream-growth", "imap: memory, 10⁶ by 10⁵ items", "MB more", bars=(Bar(8.0, None),)),
)
#: items between two looks at the memory
_LOOK = 5_000


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    # where a task costs twenty times as much, what it grows by shows with a tenth of them
    most = sizes.growth if contender == OURS else sizes.growth // 10
    with contenders.session(contender, sizes.workers) as pool:
        # before the maps, whose lists leave room behind that would hide what a stream takes
        held = _held(pool, most // 10)
        # a difference of nothing is no measure, but it must be a number above it
        grown = max(0.01, (_held(pool, most) - held) / 1000)

        def once() -> dict[str, float]:
            small = max(1, sizes.growth // 1000)
            costs = {count: _cpu(pool, count) for count in (small, most // 10, most)}
            return {
                "cpu-1e3": costs[small],
                "cpu-1e6": costs[most],
                "cpu-growth": costs[most] / costs[most // 10],
                "stream-growth": grown,
            }

        yield once


def _cpu(pool: contenders.Session, count: int) -> float:
    """Microseconds of this process a task; those of workers are not its own."""
    times = min(10, max(1, 10_000 // count))
    start = time.process_time()
    for _ in range(times):
        assert len(pool.map(tasks.noop, range(count))) == count
    return 1e6 * (time.process_time() - start) / (count * times)


def _held(pool: contenders.Session, count: int) -> int:
    """Kilobytes of this process at most while a stream of results is read."""
    most = memory.resident()
    for number, _ in enumerate(pool.stream(tasks.noop, range(count))):
        if number % _LOOK == 0:
            most = max(most, memory.resident())
    return most
