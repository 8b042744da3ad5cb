"""Tasks of counted workers: they take a fixed time by a clock of their own, however busy the machine."""

from __future__ import annotations

import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

from fiber._tasks import worker

#: seconds by the clock that :func:`own_clock` gives this process
_now = 0.0


def own_clock() -> None:
    """Initialize a worker: entries take the sum of the fixed times of their tasks."""
    worker.time = SimpleNamespace(perf_counter=lambda: _now)


def micro(item: Any) -> Any:
    """A task of a microsecond."""
    return _take(1e-6, item)


def milli(item: Any) -> Any:
    """A task of a millisecond."""
    return _take(1e-3, item)


def _take(seconds: float, item: Any) -> Any:
    global _now  # noqa: PLW0603 - a clock a process
    _now += seconds
    return item


def same(item: Any) -> Any:
    """A task that returns its argument."""
    return item


def begin_tracing(_: Any = None) -> None:
    """Note from now on how much memory Python's objects take in this worker."""
    tracemalloc.start()


def most_traced(_: Any = None) -> int:
    """Bytes that they have taken at most."""
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def put_in_rounds(items: Any, count: int, go: Any) -> None:
    """Put ``count`` items into a queue for each true item of ``go``, until a false one."""
    while go.get():
        for number in range(count):
            items.put(number)


def get_all(items: Any, count: int, done: Any, go: Any) -> None:
    """Take ``count`` items from a queue, put into ``done``, and stay until ``go`` has an item."""
    for _ in range(count):
        items.get()
    done.put(None)
    go.get()


def echo(end: Any) -> None:
    """Send items of a pipe back until None comes."""
    while (item := end.recv()) is not None:
        end.send(item)


def pause(_: Any = None) -> None:
    """Long enough that another worker takes the next one."""
    time.sleep(0.05)
