"""Tasks while ``fiber top`` looks once a second, and under a trace, beside the same unwatched."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import fiber
from benchmarks import contenders, tasks
from benchmarks.model import OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS,)
METRICS = (
    Metric(
        "top",
        "processor time of apply(), fiber top open / not",
        "x",
        bars=(Bar(1.03, against=None),),
    ),
    Metric(
        "trace",
        "processor time of apply(), traced / not",
        "x",
        bars=(Bar(1.10, against=None),),
    ),
)
#: turns of each, of which the best counts: whoever shares the machine only ever adds to one
_TURNS = 7


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    with contenders.session(contender, sizes.workers) as pool:
        pool.map(tasks.noop, range(sizes.workers))

        def cost(watching: Callable[[], AbstractContextManager[object]]) -> float:
            with watching():
                start = time.process_time()
                for number in range(sizes.applies):
                    pool.apply(tasks.noop, number)
                return time.process_time() - start

        def once() -> dict[str, float]:
            ways = {"none": contextlib.nullcontext, "top": _top, "trace": _trace}
            costs: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(_TURNS):
                for name, watching in ways.items():
                    costs[name].append(cost(watching))
            best = {name: min(found) for name, found in costs.items()}
            return {name: best[name] / best["none"] for name in ("top", "trace")}

        yield once


@contextlib.contextmanager
def _trace() -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory() as folder,
        fiber.trace(Path(folder) / "trace.json"),
    ):
        yield


@contextlib.contextmanager
def _top() -> Iterator[None]:
    """Have ``fiber top`` show this program on a terminal."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "fiber.cli.main", "top"]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        seen = b""
        while b"fiber top" not in seen:
            seen += os.read(ours, 4096)
        reader = threading.Thread(target=_drain, args=(ours,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            os.write(ours, b"q")
            reader.join()
    os.close(ours)


def _drain(terminal: int) -> None:
    # a terminal whose last user has closed it fails to be read
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass
