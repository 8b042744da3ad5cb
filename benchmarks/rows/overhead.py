"""Five workers do sleeps that take one second in all, if nothing is lost between them.

The floor is five bare processes that do their share of the sleeps with nobody to talk to.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import FLOOR, Bar, Metric, Round, Sizes

WORKERS = 5
#: by name, parts that the second is cut into
PARTS = {"1s": 1, "100ms": 10, "10ms": 100, "1ms": 1000}
CONTENDERS = None
METRICS = tuple(
    Metric(
        f"overhead-{name}",
        f"1 s of {name} sleeps, {WORKERS} workers",
        "s",
        bars=(Bar(1.0), Bar(1.08, FLOOR)) if name == "1ms" else (Bar(1.0),),
    )
    for name in PARTS
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    if contender == FLOOR:
        yield lambda: {
            f"overhead-{name}": _bare(parts, sizes.overhead / parts)
            for name, parts in PARTS.items()
        }
        return
    with contenders.session(contender, WORKERS) as pool:

        def once() -> dict[str, float]:
            values = {}
            for name, parts in PARTS.items():
                items = [sizes.overhead / parts] * (WORKERS * parts)
                start = time.perf_counter()
                pool.map(tasks.sleep, items)
                values[f"overhead-{name}"] = time.perf_counter() - start
            return values

        yield once


def _bare(count: int, seconds: float) -> float:
    """From the word to the last exit, of processes that have been forked and wait for it."""
    word, give = os.pipe()
    children = []
    for _ in range(WORKERS):
        child = os.fork()
        if child == 0:
            os.close(give)
            os.read(word, 1)
            for _ in range(count):
                time.sleep(seconds)
            os._exit(0)
        children.append(child)
    # all of them must be waiting, and nothing tells of that
    time.sleep(0.05)
    start = time.perf_counter()
    os.close(give)
    for child in children:
        os.waitpid(child, 0)
    seconds_in_all = time.perf_counter() - start
    os.close(word)
    return seconds_in_all
