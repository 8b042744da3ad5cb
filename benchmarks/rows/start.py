"""From nothing to a pool's first result: import, pool, one task, in a new program."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

#: only measured with ``--full``: it is slower than both
SPAWN = "spawn"
CONTENDERS = (OURS, BASELINE, SPAWN)
METRICS = (
    Metric("start", "5 workers, first result (forkserver)", "s", bars=(Bar(1.0),)),
    Metric("start-many", "100 workers, first result (forkserver)", "s", bars=(Bar(1.0),)),
)
_METHODS = {OURS: "fiber", BASELINE: "forkserver", SPAWN: "spawn"}


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    program = [sys.executable, "-m", "benchmarks.once", _METHODS[contender]]

    def seconds(workers: int) -> float:
        return float(subprocess.check_output([*program, str(workers)], text=True))

    # what it imports is compiled
    seconds(1)

    def once() -> dict[str, float]:
        return {"start": seconds(5), "start-many": seconds(sizes.start)}

    yield once
