"""From nothing to the first result of a pool of five: import, pool, one task, in a new program."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

WORKERS = 5
CONTENDERS = (OURS, BASELINE)
METRICS = (Metric("start", f"{WORKERS} workers, first result (forkserver)", "s", bars=(Bar(1.0),)),)
_METHODS = {OURS: "fiber", BASELINE: "forkserver"}


@contextlib.contextmanager
def prepare(contender: str, _: Sizes) -> Iterator[Round]:
    program = [sys.executable, "-m", "benchmarks.once", _METHODS[contender], str(WORKERS)]

    def once() -> dict[str, float]:
        return {"start": float(subprocess.check_output(program, text=True))}

    yield once
